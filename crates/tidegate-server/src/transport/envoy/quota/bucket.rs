//! Bucket ids, and the limits that they stand for.

use tidegate_config::envoy::lookup::LookupResult;
use tidegate_config::envoy::{Domain, ShareLimit};

use super::registry::LimitKey;
use crate::transport::envoy::proto::{BucketId, Entry};

/// Most keys of a bucket id. A map has no order, so each order is tried.
const MAX_KEYS: usize = 5;

/// The limit of a bucket: the key that it is counted under, and its size.
///
/// The keys and values of the id are those of a descriptor, in any order. If several orders match a
/// descriptor with `rlqs`, the first in alphabetical order of the keys is taken.
pub(super) fn find(domain: &Domain, bucket: &BucketId) -> Option<(LimitKey, ShareLimit)> {
    let mut entries: Vec<Entry> = bucket
        .bucket
        .iter()
        .map(|(key, value)| Entry { key: key.clone(), value: value.clone() })
        .collect();
    if entries.len() > MAX_KEYS {
        return None;
    }
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    first_order(&mut entries, 0, &|entries| {
        let found = domain.find(entries)?;
        let shares = found.leaf().shares()?;
        let rule = found.leaf().rule()?;
        Some((LimitKey::new(rule.name(), LookupResult::subject(&found, entries).key()), shares))
    })
}

/// The first result of `find` over all orders of the entries from `fixed` on.
fn first_order<T>(
    entries: &mut [Entry],
    fixed: usize,
    find: &dyn Fn(&[Entry]) -> Option<T>,
) -> Option<T> {
    if fixed + 1 >= entries.len() {
        return find(entries);
    }
    for next in fixed..entries.len() {
        entries[fixed..=next].rotate_right(1);
        let found = first_order(entries, fixed + 1, find);
        entries[fixed..=next].rotate_left(1);
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tidegate_config::envoy::EnvoyConfig;

    use super::*;

    const EDGE: &str = r#"
domain: edge
descriptors:
  - key: tenant
    descriptors:
      - { key: path, value: /a, rlqs: true, limit: "10/s burst 20" }
      - { key: path, limit: "5/s" }
  - { key: name, value: all, rlqs: true, limit: "1/m burst 3" }
"#;

    #[test]
    fn a_bucket_stands_for_the_descriptor_with_its_keys_in_any_order() {
        let config = EnvoyConfig::load_str("edge.yaml", EDGE).unwrap();
        let domain = config.domain("edge").unwrap();
        let bucket = |entries: &[(&str, &str)]| BucketId {
            bucket: entries
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
        };
        let burst =
            |entries: &[(&str, &str)]| find(domain, &bucket(entries)).map(|(_, limit)| limit.burst);
        assert_eq!(burst(&[("path", "/a"), ("tenant", "x")]), Some(20));
        assert_eq!(burst(&[("name", "all")]), Some(3));
        assert_eq!(burst(&[("path", "/b"), ("tenant", "x")]), None, "without rlqs");
        assert_eq!(burst(&[("name", "other")]), None);
        assert_eq!(burst(&[("path", "/a")]), None);
        assert_eq!(burst(&[]), None);
        let key = |tenant| find(domain, &bucket(&[("path", "/a"), ("tenant", tenant)])).unwrap().0;
        assert_eq!(key("x"), key("x"));
        assert_ne!(key("x"), key("y"), "each tenant has a limit of its own");
    }

    #[test]
    fn every_order_is_tried_once() {
        let entry = |key: &str| Entry { key: key.into(), value: String::new() };
        let mut entries: Vec<Entry> = ["a", "b", "c", "d"].map(entry).into();
        let orders = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let keys = |entries: &[Entry]| entries.iter().map(|it| it.key.clone()).collect::<String>();
        let count = std::cell::Cell::new(0);
        let none = first_order(&mut entries, 0, &|entries| {
            orders.borrow_mut().insert(keys(entries));
            count.set(count.get() + 1);
            None::<()>
        });
        assert_eq!((none, count.get(), orders.borrow().len()), (None, 24, 24));
        assert_eq!(keys(&entries), "abcd");
    }
}
