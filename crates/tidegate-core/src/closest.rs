//! Which of a few words someone meant to write.

/// Longer words are not compared; no word of ours comes near.
const LONGEST: usize = 32;

/// The one of `words` that `written` was meant to be, if that is plain: another case, `_` for `-`,
/// a beginning that only one of them has, or a slip or two of the keyboard. The words are plain ASCII.
pub fn closest<'w>(written: &str, words: impl Iterator<Item = &'w str> + Clone) -> Option<&'w str> {
    if written.len() > LONGEST {
        return None;
    }
    let written = written.to_lowercase().replace('_', "-");
    words
        .clone()
        .find(|word| letters(word).eq(written.chars()))
        .or_else(|| only_word_beginning(&written, words.clone()))
        .or_else(|| nearest(&written, words))
}

fn only_word_beginning<'w>(
    start: &str,
    words: impl Iterator<Item = &'w str> + Clone,
) -> Option<&'w str> {
    if start.len() < 3 {
        return None;
    }
    let begins = |word: &&str| start.chars().zip(letters(word)).filter(|(a, b)| a == b).count();
    let mut matching = words.filter(|word| begins(word) == start.chars().count());
    // `min` begins `mins` and `minute`, but it would have been found as a word before.
    matching.next().filter(|_| matching.next().is_none())
}

fn nearest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // In two letters, one slip leaves too little to go by.
    let most_slips = match written.chars().count() {
        0..=2 => return None,
        3..=5 => 1,
        _ => 2,
    };
    words
        .map(|word| (slips(written, word), word))
        .filter(|&(slips, _)| slips <= most_slips)
        .min_by_key(|&(slips, _)| slips)
        .map(|(_, word)| word)
}

/// The letters of a word, in which `_` is as good as `-`.
fn letters(word: &str) -> impl Iterator<Item = char> {
    word.chars().map(|letter| if letter == '_' { '-' } else { letter })
}

/// How many letters were added, left out, replaced or swapped with their neighbour.
fn slips(written: &str, word: &str) -> usize {
    if word.len() > LONGEST {
        return usize::MAX;
    }
    let mut before = None;
    // Rows of the usual table, a column per letter of `word`; a swap looks two rows back.
    let mut before_last = [0; LONGEST + 1];
    let mut last: [usize; LONGEST + 1] = core::array::from_fn(|column| column);
    let mut previous = None;
    for (row, letter) in written.chars().enumerate() {
        let mut this = [row + 1; LONGEST + 1];
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
    last[letters(word).count().min(LONGEST)]
}

#[cfg(test)]
mod tests {
    use super::{closest, slips};

    #[test]
    fn a_swap_is_one_slip() {
        for (written, word, expected) in [
            ("burst", "burst", 0),
            ("brust", "burst", 1),
            ("bursts", "burst", 1),
            ("bust", "burst", 1),
            ("durst", "burst", 1),
            ("", "burst", 5),
            ("parsec", "sec", 3),
        ] {
            assert_eq!(slips(written, word), expected, "{written} for {word}");
        }
    }

    #[test]
    fn only_a_plain_case_is_guessed() {
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
            assert_eq!(closest(written, words.into_iter()), expected, "{written}");
        }
    }
}
