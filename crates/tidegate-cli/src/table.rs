//! Columns and bars of text reports.

/// Rows of cells as lines. A column is as wide as its widest cell, and right-aligned unless `left`
/// names it.
pub(crate) fn table(rows: &[Vec<String>], left: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if left.contains(&column) {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A row of column names.
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(String::from).collect()
}

/// One block per count, scaled to the largest. Rounded up: only 0 is blank.
pub(crate) fn blocks(counts: &[u64]) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = u128::from(counts.iter().copied().max().unwrap_or(0).max(1));
    let block = |count: &u64| BLOCKS[(u128::from(*count) * 8).div_ceil(most) as usize];
    counts.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [names(["name", "count", ""]), names(["é", "1,000"])];
        assert_eq!(table(&rows, &[0]), "name  count\né     1,000\n");
        assert_eq!(table(&rows, &[]), "name  count\n   é  1,000\n");
        assert_eq!(table(&[], &[]), "");
    }

    #[test]
    fn small_counts_are_visible_in_a_chart() {
        assert_eq!(blocks(&[0, 1, 500, 1_000]), " ▁▄█");
        assert_eq!(blocks(&[]), "");
        assert_eq!(blocks(&[u64::MAX, 1]), "█▁");
    }
}
