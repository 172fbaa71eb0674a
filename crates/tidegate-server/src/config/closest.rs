//! Which of a few words someone meant to write.

/// Longer words are not compared; no field comes near.
const LONGEST: usize = 32;

/// The one of `words` that `written` was probably meant to be.
pub(super) fn closest<'w>(
    written: &str,
    words: impl Iterator<Item = &'w str> + Clone,
) -> Option<&'w str> {
    if written.len() > LONGEST {
        return None;
    }
    let written = written.to_lowercase().replace('-', "_");
    let most_slips = match written.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    let near = |word: &'w str| {
        let count = slips(&written, &word.replace('-', "_"));
        (count <= most_slips).then_some((count, word))
    };
    let nearest = words.clone().filter_map(near).min_by_key(|&(count, _)| count);
    nearest.map(|(_, word)| word).or_else(|| {
        // `on_missing` for `on_missing_key`, if nothing else begins like it.
        let mut longer = words.filter(|word| written.len() >= 3 && word.starts_with(&*written));
        longer.next().filter(|_| longer.next().is_none())
    })
}

/// How many letters were added, left out, replaced or swapped with their neighbour.
fn slips(written: &str, word: &str) -> usize {
    let (written, word): (Vec<char>, Vec<char>) =
        (written.chars().collect(), word.chars().collect());
    let first =
        |i: usize| if i == 0 { (0..=word.len()).collect() } else { vec![i; word.len() + 1] };
    let mut rows: Vec<Vec<usize>> = (0..=written.len()).map(first).collect();
    for i in 1..=written.len() {
        for j in 1..=word.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(written[i - 1] != word[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            let is_swap =
                i > 1 && j > 1 && written[i - 1] == word[j - 2] && written[i - 2] == word[j - 1];
            if is_swap {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[written.len()][word.len()]
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn only_a_plain_case_is_guessed() {
        let words =
            ["name", "limits", "shadow_limits", "on_missing_key", "on_store_failure", "key"];
        for (written, expected) in [
            ("limit", Some("limits")),
            ("Limits", Some("limits")),
            ("limtis", Some("limits")),
            ("shadow-limits", Some("shadow_limits")),
            ("on_missing", Some("on_missing_key")),
            ("keys", Some("key")),
            ("on_", None),
            ("ab", None),
            ("", None),
            ("whatever", None),
            ("\u{e9}\u{e9}\u{e9}", None),
            ("a_very_long_field_that_nobody_has_ever_heard_of", None),
        ] {
            assert_eq!(closest(written, words.into_iter()), expected, "{written}");
        }
    }
}
