//! How to package.

use std::path::PathBuf;

use crate::USAGE;

/// What was asked for.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// The target to build for; the static one if it can be built for.
    pub(super) target: Option<String>,
    /// Where everything goes: `target/package`.
    pub(super) out: Option<PathBuf>,
    /// A binary that was built already.
    pub(super) binary: Option<PathBuf>,
}

impl TryFrom<&[String]> for Options {
    type Error = String;

    fn try_from(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} wants a value\n{USAGE}"))?;
            match flag.as_str() {
                "--target" => options.target = Some(value.clone()),
                "--out" => options.out = Some(value.into()),
                "--binary" => options.binary = Some(value.into()),
                _ => return Err(format!("unknown option {flag}\n{USAGE}")),
            }
        }
        if options.binary.is_some() && options.target.is_none() {
            return Err("--binary wants --target, to tell what it was built for".into());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.as_slice().try_into()
    }

    #[test]
    fn a_binary_says_what_it_was_built_for() {
        assert_eq!(read(""), Ok(Options::default()));
        let options = read("--binary b --target t --out o").unwrap();
        assert_eq!(options.target.as_deref(), Some("t"));
        for bad in ["--binary b", "--target", "--nonsense x"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
