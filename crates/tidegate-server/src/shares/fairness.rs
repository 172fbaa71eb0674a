//! Max-min fairness: nobody gets more by taking from a smaller share.

/// Divides `total` so that each gets what it wants, or as much as any other that does not. What is
/// left over is divided evenly.
pub(crate) fn divide(total: u64, wanted: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|&index| wanted[index]);
    let mut shares = vec![0; wanted.len()];
    let (mut left, mut count) = (total, wanted.len() as u64);
    for &index in &order {
        shares[index] = wanted[index].min(left / count);
        (left, count) = (left - shares[index], count - 1);
    }
    // The smallest first, as the parts are rounded down.
    let mut count = wanted.len() as u64;
    for &index in &order {
        let more = left / count;
        shares[index] += more;
        (left, count) = (left - more, count - 1);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_demands_are_met_and_the_rest_is_even() {
        for (total, wanted, shares) in [
            (100, &[10, 80, 90][..], [10, 45, 45].as_slice()),
            (100, &[10, 20, 30], &[23, 33, 44]),
            (100, &[200], &[100]),
            (100, &[0, 0, 0], &[33, 33, 34]),
            (2, &[5, 5, 5], &[0, 1, 1]),
            (100, &[], &[]),
        ] {
            assert_eq!(divide(total, wanted), shares, "{total} {wanted:?}");
        }
    }
}
