//! What was asked of the mutation run.

use super::Mutant;

/// The options of `cargo xtask mutants`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// How many mutants to try at the same time.
    pub(super) jobs: usize,
    /// Only files whose path contains this.
    pub(super) file: Option<String>,
    pub(super) shard: Shard,
    /// Show the mutants and try none.
    pub(super) list: bool,
}

/// Every `count`-th mutant, beginning with the `number`-th.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shard {
    number: usize,
    count: usize,
}

impl Options {
    pub(super) fn choose<'a>(&self, mutants: &'a [Mutant<'a>]) -> Vec<&'a Mutant<'a>> {
        let pattern = self.file.as_deref().unwrap_or_default();
        let in_file = mutants.iter().filter(|mutant| mutant.file.path.contains(pattern));
        in_file.skip(self.shard.number - 1).step_by(self.shard.count).collect()
    }
}

impl TryFrom<&[String]> for Options {
    type Error = String;

    fn try_from(arguments: &[String]) -> Result<Self, String> {
        let shard = Shard { number: 1, count: 1 };
        let mut options = Self { jobs: 2, file: None, shard, list: false };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--list" => options.list = true,
                "--file" => options.file = Some(value()?.clone()),
                "--jobs" => options.jobs = jobs(value()?)?,
                "--shard" => options.shard = value()?.parse()?,
                _ => return Err(format!("unknown option {word:?}; {}", crate::USAGE)),
            }
        }
        Ok(options)
    }
}

fn jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs @ 1..=64) => Ok(jobs),
        _ => Err(format!("--jobs {text:?} is not a number of jobs; use 1 to 64")),
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(number, count)| (number.parse(), count.parse()));
        match parts {
            Some((Ok(number), Ok(count))) if 0 < number && number <= count => {
                Ok(Self { number, count })
            }
            _ => Err(format!("--shard {text:?} is not a shard; the second of three is 2/3")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{File, mutants};
    use super::Options;

    fn options(words: &str) -> Result<Options, String> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Options::try_from(&words[..])
    }

    #[test]
    fn an_option_that_makes_no_sense_is_refused() {
        for (words, complaint) in [
            ("--jobs", "--jobs needs a value"),
            ("--jobs 0", "--jobs \"0\" is not a number of jobs; use 1 to 64"),
            ("--shard 0/2", "--shard \"0/2\" is not a shard; the second of three is 2/3"),
            ("--shard 3/2", "--shard \"3/2\" is not a shard; the second of three is 2/3"),
            ("--shard 2", "--shard \"2\" is not a shard; the second of three is 2/3"),
        ] {
            assert_eq!(options(words), Err(complaint.to_owned()), "{words}");
        }
        assert!(options("--fast").is_err());
    }

    #[test]
    fn the_shards_of_a_run_share_its_mutants_out() {
        let files = ["a.rs", "b.rs"]
            .map(|path| File { path: path.into(), source: "f(a < b, a > b, a + b)".into() });
        let all: Vec<_> = files.iter().flat_map(mutants).collect();
        for (words, expected) in [
            ("", "a.rs < a.rs > a.rs + b.rs < b.rs > b.rs +"),
            ("--shard 1/2", "a.rs < a.rs + b.rs >"),
            ("--shard 2/2", "a.rs > b.rs < b.rs +"),
            ("--file b.rs", "b.rs < b.rs > b.rs +"),
            ("--file b --shard 3/3", "b.rs +"),
            ("--file c", ""),
        ] {
            let chosen = options(words).unwrap().choose(&all);
            let shown: Vec<String> = chosen
                .iter()
                .map(|mutant| format!("{} {}", mutant.file.path, mutant.edit.old))
                .collect();
            assert_eq!(shown.join(" "), expected, "{words}");
        }
    }
}
