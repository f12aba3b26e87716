//! Numbers as the C library reads them. Text behind a number is ignored, and text without a number is 0.

/// The number at the beginning of `text`, with a sign, and the text behind it. `None`: there is no digit.
fn prefix(text: &str, base: u32) -> (Option<i128>, &str) {
    let trimmed = text.trim_start();
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let hex = |s: &str| {
        let rest = s
            .strip_prefix("0x")
            .or_else(|| s.strip_prefix("0X"))
            .map(str::to_owned);
        rest.filter(|r| r.starts_with(|c: char| c.is_ascii_hexdigit()))
    };
    let (base, skip) = match (base, hex(digits).is_some(), digits.starts_with('0')) {
        (0 | 16, true, _) => (16, 2),
        (0, false, true) => (8, 0),
        (0, false, false) => (10, 0),
        (base, ..) => (base, 0),
    };
    let digits = digits.get(skip..).unwrap_or_default();
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (number, rest) = digits.split_at(end);
    if number.is_empty() {
        return (None, text);
    }
    // At most 2^100: callers clamp it further.
    let value = number
        .chars()
        .filter_map(|c| c.to_digit(base))
        .fold(0_i128, |v, d| {
            v.checked_mul(base.into())
                .and_then(|v| v.checked_add(d.into()))
                .filter(|v| *v < 1 << 100)
                .unwrap_or(1 << 100)
        });
    (Some(if negative { -value } else { value }), rest)
}

/// `atoi`.
pub(super) fn atoi(text: &str) -> i64 {
    strtol(text, 10).0
}

/// `strtol`: the number, and whether no text follows it.
pub(super) fn strtol(text: &str, base: u32) -> (i64, bool) {
    let (value, rest) = prefix(text, base);
    let value = value.unwrap_or(0).clamp(i64::MIN.into(), i64::MAX.into());
    (i64::try_from(value).unwrap_or(0), rest.is_empty())
}

/// `strtoull`.
pub(super) fn strtoull(text: &str, base: u32) -> u64 {
    let value = prefix(text, base).0.unwrap_or(0);
    if value < 0 {
        u64::try_from(-value).map_or(u64::MAX, u64::wrapping_neg)
    } else {
        u64::try_from(value).unwrap_or(u64::MAX)
    }
}
