//! Options before the arguments of `dpctl` commands, and the messages about faults in them.

/// Parsed options of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// `-m`, `--more`: number of repetitions.
    pub(super) verbosity: u32,
    /// Names of ports instead of numbers.
    pub(super) names: bool,
    /// `-s`, `--statistics`.
    pub(super) statistics: bool,
}

/// Splits leading options from the other arguments.
pub(super) fn split<'a, 'b>(mut args: &'a [&'b str]) -> Result<(Options, &'a [&'b str]), String> {
    let mut options = Options::default();
    let mut names = None;
    while let [first, rest @ ..] = args {
        match *first {
            "--statistics" => options.statistics = true,
            "--more" => options.verbosity += 1,
            "--names" => names = Some(true),
            "--no-names" => names = Some(false),
            "--clear" | "--may-create" => {}
            long if long.starts_with("--") => return Err(format!("Unrecognized option {long}")),
            short if short.len() > 1 && short.starts_with('-') => {
                for letter in short.chars().skip(1) {
                    match letter {
                        'm' => options.verbosity += 1,
                        's' => options.statistics = true,
                        other => return Err(format!("Unrecognized option -{other}")),
                    }
                }
            }
            _ => break,
        }
        args = rest;
    }
    options.names = names.unwrap_or(options.verbosity > 0);
    Ok((options, args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_first() {
        let (options, rest) = split(&["-ms", "--no-names", "dp", "-x"]).unwrap();
        assert_eq!(
            options,
            Options {
                verbosity: 1,
                names: false,
                statistics: true
            }
        );
        assert_eq!(rest, ["dp", "-x"]);
        assert!(split(&["-m"]).unwrap().0.names);
        assert_eq!(split(&["-x"]).unwrap_err(), "Unrecognized option -x");
        assert_eq!(split(&["--foo"]).unwrap_err(), "Unrecognized option --foo");
    }
}
