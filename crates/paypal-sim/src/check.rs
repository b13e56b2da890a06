//! Checks a JSON body against hand-written rules and reports every breach the way PayPal does:
//! an issue code and a JSON pointer.
//!
//! Objects stay open: PayPal ignores members it does not know.

use serde_json::Value;

use crate::answer::Detail;

/// What a value must look like.
pub(crate) enum Rule {
    /// A string of `min..=max` characters in a given shape.
    Text { min: usize, max: usize, shape: Shape },
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// An object with these known members.
    Object(&'static [Field]),
    /// An array.
    List { min: usize, max: usize, of: &'static Rule },
}

/// A member of an object.
pub(crate) struct Field {
    name: &'static str,
    required: bool,
    rule: &'static Rule,
}

/// A member that must be there.
pub(crate) const fn required(name: &'static str, rule: &'static Rule) -> Field {
    Field { name, required: true, rule }
}

/// A member that may be there.
pub(crate) const fn optional(name: &'static str, rule: &'static Rule) -> Field {
    Field { name, required: false, rule }
}

/// Character shapes, named after what uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Anything.
    Free,
    /// Anything on one line (`.` in PayPal's patterns).
    Line,
    /// `^((-?[0-9]+)|(-?([0-9]+)?[.][0-9]+))$`.
    Amount,
    /// `^[1-9][0-9]{0,9}$`.
    Quantity,
    /// `^[0-9A-Z_]+$`.
    Code,
    /// `^[0-9a-zA-Z_-]+$`.
    Id,
    /// `^[2-9A-HJ-NP-Z]{13}$`.
    PayerId,
    /// `^[a-zA-Z0-9_'\-., :;\!?"]*$`, what a wallet description may hold.
    WalletText,
    /// `^([A-Z]{2}|C2)$`.
    Country,
    /// Something with an `@` between two parts.
    Email,
    /// An absolute URI.
    Url,
    /// `en`, `en-US`, `zh-Hant-TW`.
    Locale,
}

impl Shape {
    fn admits(self, text: &str) -> bool {
        let every = |test: fn(u8) -> bool| text.bytes().all(test);
        match self {
            Self::Free => true,
            Self::Line => !text.contains(['\n', '\r', '\u{2028}', '\u{2029}']),
            Self::Amount => is_amount(text),
            Self::Quantity => !text.starts_with('0') && every(|byte| byte.is_ascii_digit()),
            Self::Code => {
                every(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
            }
            Self::Id => every(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)),
            Self::PayerId => every(|byte| b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ".contains(&byte)),
            Self::WalletText => {
                every(|byte| byte.is_ascii_alphanumeric() || b"_'-., :;!?\"".contains(&byte))
            }
            Self::Country => text == "C2" || every(|byte| byte.is_ascii_uppercase()),
            Self::Email => text
                .split_once('@')
                .is_some_and(|(user, host)| !user.is_empty() && host.contains('.')),
            Self::Url => url::Url::parse(text).is_ok(),
            Self::Locale => text.split('-').enumerate().all(|(at, part)| is_locale_part(at, part)),
        }
    }
}

fn is_amount(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let all = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    match digits.split_once('.') {
        Some((whole, fraction)) => all(whole) && !fraction.is_empty() && all(fraction),
        None => !digits.is_empty() && all(digits),
    }
}

fn is_locale_part(at: usize, part: &str) -> bool {
    let every = |test: fn(u8) -> bool| part.bytes().all(test);
    if at == 0 {
        return part.len() == 2 && every(|byte| byte.is_ascii_lowercase());
    }
    match part.len() {
        2 => every(|byte| byte.is_ascii_uppercase()),
        3 => every(|byte| byte.is_ascii_digit()),
        4 => every(|byte| byte.is_ascii_alphabetic()),
        _ => false,
    }
}

/// Every breach of `rule` in `value`, in document order.
pub(crate) fn breaches(rule: &Rule, value: &Value) -> Vec<Detail> {
    let mut found = Vec::new();
    walk(rule, value, String::new(), &mut found);
    found
}

fn walk(rule: &Rule, value: &Value, pointer: String, found: &mut Vec<Detail>) {
    match (rule, value) {
        (Rule::Text { min, max, shape }, Value::String(text)) => {
            let length = text.chars().count();
            if length < *min || length > *max {
                found.push(breach("INVALID_STRING_LENGTH", pointer, value));
            } else if !shape.admits(text) {
                found.push(breach("INVALID_PARAMETER_SYNTAX", pointer, value));
            }
        }
        (Rule::OneOf(allowed), Value::String(text)) => {
            if !allowed.contains(&text.as_str()) {
                found.push(breach("INVALID_PARAMETER_VALUE", pointer, value));
            }
        }
        (Rule::Flag, Value::Bool(_)) => {}
        (Rule::Object(fields), Value::Object(members)) => {
            for field in *fields {
                let inner = format!("{pointer}/{}", field.name);
                match members.get(field.name) {
                    Some(member) => walk(field.rule, member, inner, found),
                    None if field.required => {
                        found.push(Detail::body("MISSING_REQUIRED_PARAMETER", inner));
                    }
                    None => {}
                }
            }
        }
        (Rule::List { min, max, of }, Value::Array(items)) => {
            if items.len() < *min {
                found.push(breach("INVALID_ARRAY_MIN_ITEMS", pointer, value));
                return;
            }
            if items.len() > *max {
                found.push(breach("INVALID_ARRAY_MAX_ITEMS", pointer, value));
                return;
            }
            for (at, item) in items.iter().enumerate() {
                walk(of, item, format!("{pointer}/{at}"), found);
            }
        }
        _ => found.push(breach("INVALID_PARAMETER_SYNTAX", pointer, value)),
    }
}

fn breach(issue: &str, pointer: String, value: &Value) -> Detail {
    let detail = Detail::body(issue, if pointer.is_empty() { "/".into() } else { pointer });
    match value {
        Value::String(text) => detail.value(text.chars().take(256).collect::<String>()),
        Value::Number(number) => detail.value(number.to_string()),
        Value::Bool(flag) => detail.value(flag.to_string()),
        _ => detail,
    }
}
