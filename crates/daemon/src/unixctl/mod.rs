//! The control socket that `ovs-appctl` talks to: commands by name, text replies.
//!
//! A part of the daemon adds its commands to the [`Registry`] while it starts:
//!
//! ```
//! use heddle_daemon::unixctl::Registry;
//! let registry = Registry::new();
//! registry.register("fdb/show", "bridge", 1, 1, |args| match args {
//!     [bridge] if bridge == "br0" => Ok(" port  VLAN  MAC                Age\n".to_owned()),
//!     _ => Err("no such bridge".to_owned()),
//! });
//! ```
//!
//! Arguments do not include the command's name. `Ok` is printed by `ovs-appctl` on its standard output, `Err`
//! on its standard error with exit status 2. Handlers run concurrently when several clients call; each
//! connection has one command in progress at a time. A handler may block: it runs on a thread for that. A
//! handler that panics costs its client an error reply, nothing else.
//!
//! A client that sends `set-options --format json` gets JSON from then on. The reply comes from the command's
//! JSON handler ([`Registry::register_json`]). Without one it is an object with the text:
//! `{"reply-format":"plain","reply":"..."}`.

mod connection;
mod server;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::{Value, json};

pub use server::Server;

/// Reply of a command: text for the client's standard output, or for its standard error.
pub type Reply = Result<String, String>;

/// Reply of a command to a client that requested JSON: a value, or text for its standard error.
pub type JsonReply = Result<Value, String>;

type JsonFn = dyn Fn(&[String]) -> JsonReply + Send + Sync;
type PlainFn = dyn Fn(&[String]) -> Reply + Send + Sync;

struct Command {
    /// `None` hides the command from `list-commands`.
    usage: Option<String>,
    min_args: usize,
    max_args: usize,
    handler: Arc<PlainFn>,
    /// `None`: the JSON reply is an object with the text.
    json: Option<Arc<JsonFn>>,
}

/// The commands that the daemon knows. Cloning gives another handle to the same set.
#[derive(Clone, Default)]
pub struct Registry {
    commands: Arc<RwLock<BTreeMap<String, Command>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.commands.read().keys()).finish()
    }
}

impl Registry {
    /// A registry that knows `list-commands` and `set-options` only.
    #[must_use]
    pub fn new() -> Registry {
        let registry = Registry::default();
        let weak = Arc::downgrade(&registry.commands);
        registry.register("list-commands", "", 0, 0, move |_| {
            Ok(weak
                .upgrade()
                .map(|commands| list(&commands.read()))
                .unwrap_or_default())
        });
        let weak = Arc::downgrade(&registry.commands);
        registry.register_json("list-commands", move |_| {
            let commands = weak.upgrade();
            Ok(commands.map(|c| usages(&c.read())).unwrap_or_default())
        });
        // The handler only checks the arguments: the connection applies them to itself.
        registry.register("set-options", "[--format text|json]", 1, 2, |args| {
            Format::from_options(args).map(|_| String::new())
        });
        registry
    }

    /// Adds the JSON handler of a registered command. Returns false if there is no such command.
    pub fn register_json(
        &self,
        name: &str,
        handler: impl Fn(&[String]) -> JsonReply + Send + Sync + 'static,
    ) -> bool {
        let mut commands = self.commands.write();
        let command = commands.get_mut(name);
        command.map(|c| c.json = Some(Arc::new(handler))).is_some()
    }

    /// Adds a command with a handler that may block. `usage` describes the arguments in `list-commands`;
    /// `None` hides the command. `max_args` is `usize::MAX` for no limit.
    ///
    /// Returns false, and changes nothing, when the name is taken.
    pub fn register<'a>(
        &self,
        name: &str,
        usage: impl Into<Option<&'a str>>,
        min_args: usize,
        max_args: usize,
        handler: impl Fn(&[String]) -> Reply + Send + Sync + 'static,
    ) -> bool {
        let mut commands = self.commands.write();
        let free = !commands.contains_key(name);
        if free {
            let command = Command {
                usage: usage.into().map(str::to_owned),
                min_args,
                max_args,
                handler: Arc::new(handler),
                json: None,
            };
            commands.insert(name.to_owned(), command);
        }
        free
    }

    /// Runs a command as if a client had sent it.
    ///
    /// # Errors
    /// The command is unknown, has too few or too many arguments, or its handler failed.
    pub async fn run(&self, name: &str, args: Vec<String>) -> Reply {
        let (handler, _) = self.find(name, args.len())?;
        let done = tokio::task::spawn_blocking(move || handler(&args)).await;
        done.unwrap_or_else(|_| Err(failed(name)))
    }

    /// Like [`Registry::run`], for a client that requested JSON.
    ///
    /// # Errors
    /// The same as those of [`Registry::run`].
    pub async fn run_json(&self, name: &str, args: Vec<String>) -> JsonReply {
        let Some(handler) = self.find(name, args.len())?.1 else {
            let text = self.run(name, args).await?;
            return Ok(json!({"reply-format": "plain", "reply": text}));
        };
        let done = tokio::task::spawn_blocking(move || handler(&args)).await;
        done.unwrap_or_else(|_| Err(failed(name)))
    }

    /// The text of `list-commands`.
    pub fn list(&self) -> String {
        list(&self.commands.read())
    }

    fn find(&self, name: &str, n_args: usize) -> Result<(Arc<PlainFn>, Option<Arc<JsonFn>>), String> {
        let commands = self.commands.read();
        let command = commands.get(name).ok_or_else(|| {
            format!(
                "\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
            )
        })?;
        if n_args < command.min_args {
            return Err(format!(
                "\"{name}\" command requires at least {} arguments",
                command.min_args
            ));
        }
        if n_args > command.max_args {
            return Err(format!(
                "\"{name}\" command takes at most {} arguments",
                command.max_args
            ));
        }
        Ok((command.handler.clone(), command.json.clone()))
    }
}

/// Format of the replies of a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Format {
    #[default]
    Text,
    Json,
}

impl Format {
    /// The format that the arguments of `set-options` name. If they name several, the last one counts.
    fn from_options(args: &[String]) -> Result<Format, String> {
        let mut format = Format::Text;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = match arg.strip_prefix("--format=") {
                Some(value) => value,
                None if arg == "--format" => args.next().ok_or("option '--format' requires an argument")?,
                None => return Err(format!("unrecognized option '{arg}'")),
            };
            format = match value.to_ascii_lowercase().as_str() {
                "text" => Format::Text,
                "json" => Format::Json,
                _ => return Err(format!("option format has invalid value {value}")),
            };
        }
        Ok(format)
    }
}

fn failed(name: &str) -> String {
    format!("\"{name}\" command failed: see the log")
}

/// [`list`] as a JSON object.
fn usages(commands: &BTreeMap<String, Command>) -> Value {
    let shown = commands
        .iter()
        .filter_map(|(name, c)| Some((name.clone(), c.usage.clone()?.into())));
    Value::Object(shown.collect())
}

fn list(commands: &BTreeMap<String, Command>) -> String {
    let mut out = String::from("The available commands are:\n");
    for (name, command) in commands {
        if let Some(usage) = &command.usage {
            let _ = writeln!(out, "  {name:<23} {usage}");
        }
    }
    out
}
