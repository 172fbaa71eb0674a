//! Suggestions for misspelt words.

/// Longer words are not compared; no known word is nearly that long.
const MAX_LEN: usize = 32;

/// The one of `words` that `written` resembles clearly: another case, `_` for `-`, a prefix that
/// only one of them has, or one or two typos. The words must be ASCII.
pub fn did_you_mean<'w>(
    written: &str,
    words: impl Iterator<Item = &'w str> + Clone,
) -> Option<&'w str> {
    if written.len() > MAX_LEN {
        return None;
    }
    let written = written.to_lowercase().replace('_', "-");
    words
        .clone()
        .find(|word| letters(word).eq(written.chars()))
        .or_else(|| only_word_with_prefix(&written, words.clone()))
        .or_else(|| nearest(&written, words))
}

fn only_word_with_prefix<'w>(
    start: &str,
    words: impl Iterator<Item = &'w str> + Clone,
) -> Option<&'w str> {
    if start.len() < 3 {
        return None;
    }
    let begins = |word: &&str| start.chars().zip(letters(word)).filter(|(a, b)| a == b).count();
    let mut matching = words.filter(|word| begins(word) == start.chars().count());
    // `min` is a prefix of `mins` and `minute`, but it is a word and was found before.
    matching.next().filter(|_| matching.next().is_none())
}

fn nearest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // With two letters, one typo leaves too little to compare.
    let max_typos = match written.chars().count() {
        0..=2 => return None,
        3..=5 => 1,
        _ => 2,
    };
    words
        .map(|word| (typos(written, word), word))
        .filter(|&(typos, _)| typos <= max_typos)
        .min_by_key(|&(typos, _)| typos)
        .map(|(_, word)| word)
}

/// The letters of a word, with `_` replaced by `-`.
fn letters(word: &str) -> impl Iterator<Item = char> {
    word.chars().map(|letter| if letter == '_' { '-' } else { letter })
}

/// Edit distance: letters added, left out, replaced, or swapped with their neighbour.
fn typos(written: &str, word: &str) -> usize {
    if word.len() > MAX_LEN {
        return usize::MAX;
    }
    let mut before = None;
    // Rows of the usual table, a column per letter of `word`; a swap uses the row before the last.
    let mut before_last = [0; MAX_LEN + 1];
    let mut last: [usize; MAX_LEN + 1] = core::array::from_fn(|column| column);
    let mut previous = None;
    for (row, letter) in written.chars().enumerate() {
        let mut this = [row + 1; MAX_LEN + 1];
        for (column, expected) in letters(word).enumerate() {
            let replaced = last[column] + usize::from(letter != expected);
            this[column + 1] = replaced.min(last[column + 1] + 1).min(this[column] + 1);
            if column > 0 && previous == Some(expected) && before == Some(letter) {
                this[column + 1] = this[column + 1].min(before_last[column - 1] + 1);
            }
            before = Some(expected);
        }
        (before_last, last, previous) = (last, this, Some(letter));
    }
    last[letters(word).count().min(MAX_LEN)]
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, typos};

    #[test]
    fn a_swap_is_one_typo() {
        for (written, word, expected) in [
            ("burst", "burst", 0),
            ("brust", "burst", 1),
            ("bursts", "burst", 1),
            ("bust", "burst", 1),
            ("durst", "burst", 1),
            ("", "burst", 5),
            ("parsec", "sec", 3),
        ] {
            assert_eq!(typos(written, word), expected, "{written} for {word}");
        }
    }

    #[test]
    fn only_a_clear_case_is_suggested() {
        let words = ["sliding-log", "sliding-window", "concurrency", "tz"];
        for (written, expected) in [
            ("SLIDING_LOG", Some("sliding-log")),
            ("slidinglog", Some("sliding-log")),
            ("conc", Some("concurrency")),
            ("sliding", None),
            ("zz", None),
            ("TZ", Some("tz")),
            ("\u{e9}\u{e9}", None),
            ("a-very-long-word-that-is-nothing", None),
        ] {
            assert_eq!(did_you_mean(written, words.into_iter()), expected, "{written}");
        }
    }
}
