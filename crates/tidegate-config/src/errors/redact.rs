//! Redaction of secrets and passwords in messages.

use std::ops::Range;

/// Printed in place of a secret.
pub(crate) const MASK: &str = "***";

/// A store URL without its password: `redis://user:***@host`.
pub(crate) fn url(text: &str) -> String {
    let mut masked = text.to_string();
    for range in in_url(text).into_iter().rev() {
        masked.replace_range(range, MASK);
    }
    masked
}

/// The secret parts of a URL: the password, and everything after a `?`. Without a scheme,
/// everything before the `@`.
pub(crate) fn in_url(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = match text.contains("://") {
        true => in_authority(text).into_iter().collect(),
        false => text.rfind('@').map(|end| 0..end).into_iter().collect(),
    };
    let after = found.last().map_or(0, |range| range.end);
    if let Some(at) = text[after..].find('?') {
        found.push(after + at + 1..text.len());
    }
    found
}

/// The password in a URL, or everything before the `@` if there is no `:` that separates user and
/// password. It ends at the last `@`, because a password may contain one.
fn in_authority(text: &str) -> Option<Range<usize>> {
    let start = text.find("://")? + "://".len();
    let end = start + text[start..].rfind('@')?;
    let password = text[start..end].find(':').map_or(start, |colon| start + colon + 1);
    (password < end).then_some(password..end)
}

/// Whether a field of this name holds a secret, misspelt names included.
pub(crate) fn is_secret(field: &str) -> bool {
    sounds_secret(field)
        || tidegate::did_you_mean(field, ["secret", "password"].into_iter()).is_some()
}

/// Cheap version of [`is_secret`]: it runs for every name in a line of up to 1 MiB.
fn may_be_secret(name: &str) -> bool {
    let begins = name.starts_with(['s', 'S', 'p', 'P']) && name.len() <= 10;
    sounds_secret(name) || (begins && is_secret(name))
}

fn sounds_secret(field: &str) -> bool {
    let field = field.to_ascii_lowercase();
    ["secret", "passw", "token", "credential"].iter().any(|word| field.contains(word))
}

/// What looks like a secret in a line. Works without parsing the file.
pub(crate) fn in_line(line: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = in_authority(line).into_iter().collect();
    if let Some(address) = line.find("://") {
        let after = found.last().map_or(address, |range| range.end);
        found.extend(line[after..].find('?').map(|at| after + at + 1..line.len()));
    }
    let named = line.match_indices(':').find(|&(colon, _)| {
        let after = line[colon + 1..].chars().next();
        let before =
            line[..colon].trim_end_matches(|c: char| c.is_whitespace() || "\"'".contains(c));
        let name = before.rsplit(is_separator).next();
        after.is_none_or(char::is_whitespace) && name.is_some_and(may_be_secret)
    });
    if let Some((colon, _)) = named {
        let value = line[colon + 1..].trim_start();
        found.push(line.len() - value.len()..line.len());
    } else {
        found.extend(after_first_word(line));
    }
    found
}

/// The text after the name of a secret that begins a line, also if the name is misspelt or the
/// colon is missing.
fn after_first_word(line: &str) -> Option<Range<usize>> {
    let start = line.find(|c: char| c.is_alphanumeric())?;
    let word = line[start..].split(is_separator).next()?;
    let value = line[start + word.len()..].trim_start_matches([' ', '\t', '"', '\'', ':', '=']);
    let is_name = is_secret(word) && word != "token-bucket";
    (is_name && !value.is_empty()).then_some(line.len() - value.len()..line.len())
}

fn is_separator(c: char) -> bool {
    !(c.is_alphanumeric() || "_-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_prints_without_its_password() {
        for (text, printed) in [
            ("memory", "memory"),
            ("redis://host:6379/0", "redis://host:6379/0"),
            ("redis://user:pw@host:6379", "redis://user:***@host:6379"),
            ("redis://:pw@host", "redis://:***@host"),
            ("redis://pw@host", "redis://***@host"),
            ("redis://user:p@w:d@host", "redis://user:***@host"),
            ("redis-sentinel://:pw@a,b/main", "redis-sentinel://:***@a,b/main"),
            ("unix:///run/redis?pass=pw", "unix:///run/redis?***"),
            ("redis://u:p?w@h?password=x", "redis://u:***@h?***"),
            ("redis://@h", "redis://@h"),
            ("redis//user:pw@h", "***@h"),
        ] {
            assert_eq!(url(text), printed);
        }
    }

    #[test]
    fn a_line_with_a_secret_is_recognized_without_parsing_the_file() {
        let masked = |line: &str| {
            let mut line = line.to_string();
            for range in in_line(&line).into_iter().rev() {
                line.replace_range(range, MASK);
            }
            line
        };
        for (line, printed) in [
            ("secret: abc", "secret: ***"),
            ("  'secret' :  abc # def", "  'secret' :  ***"),
            ("{ store: memory, secret: abc }", "{ store: memory, secret: ***"),
            ("secret:", "secret:***"),
            ("client-secret: abc", "client-secret: ***"),
            ("secret abc", "secret ***"),
            ("secert: abc", "secert: ***"),
            ("{ store: memory, [, secert: abc }", "{ store: memory, [, secert: ***"),
            ("{ store: memory, Pasword: abc }", "{ store: memory, Pasword: ***"),
            ("{ a: 1, redis-password-file: abc }", "{ a: 1, redis-password-file: ***"),
            ("{ a: 1, API_TOKEN: abc }", "{ a: 1, API_TOKEN: ***"),
            (
                "{ period: 1s, path: /secret, series: 1 }",
                "{ period: 1s, path: /secret, series: 1 }",
            ),
            ("  - 'secret'=abc", "  - 'secret'=***"),
            ("secret", "secret"),
            ("- token-bucket 5/s", "- token-bucket 5/s"),
            ("store: redis://:abc@h", "store: redis://:***@h"),
            ("store: unix:///s?password=abc # d", "store: unix:///s?***"),
            ("store: redis://u:a?c@h?d", "store: redis://u:***@h?***"),
            ("limits: [\"token-bucket 5/s\"]", "limits: [\"token-bucket 5/s\"]"),
            ("key: [\"cookie:token\"]", "key: [\"cookie:token\"]"),
        ] {
            assert_eq!(masked(line), printed);
        }
    }

    #[test]
    fn the_cheap_test_for_secret_names_agrees_with_the_full_one() {
        for name in ["secret", "secert", "Sercet", "secrets", "password", "pasword", "passwort"] {
            assert!(may_be_secret(name) && is_secret(name), "{name}");
        }
        for name in ["store", "shadow", "period", "policy", "prefix", "rules", "limits", ""] {
            assert!(!may_be_secret(name) && !is_secret(name), "{name}");
        }
    }
}
