//! What a node says about its Cluster, and what several say together.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::Value;

use super::redirect::place_of;
use crate::address::Place;
use crate::slot::Slot;

/// What one node says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct View {
    /// Who says it.
    by: Place,
    /// It says that the Cluster works. A node that was cut off from most others does not.
    pub(super) settled: bool,
    /// Grows with every failover and every slot that changes hands: a node that was cut off has
    /// stopped at the one before.
    epoch: u64,
    shards: Vec<Shard>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Shard {
    slots: RangeInclusive<u16>,
    primary: Place,
    replicas: Vec<Place>,
}

impl View {
    /// What `by` has answered to `CLUSTER INFO`, if it may be asked that, and to `CLUSTER SLOTS`.
    /// None if it cannot be read, or if it knows of no slot.
    pub(super) fn read(by: &Place, info: Option<&Value>, slots: &Value) -> Option<Self> {
        let info = info.and_then(text).unwrap_or_default();
        let field = |name: &str| {
            info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
        };
        let Value::Array(rows) = slots else { return None };
        let shards: Vec<Shard> =
            rows.iter().map(|row| Shard::read(row, by)).collect::<Option<_>>()?;
        Some(Self {
            by: by.clone(),
            settled: field("cluster_state").is_none_or(|state| state == "ok"),
            epoch: field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
            shards,
        })
        .filter(|view| !view.shards.is_empty())
    }
}

impl Shard {
    /// First slot, last slot, the primary, its replicas.
    fn read(row: &Value, asked: &Place) -> Option<Self> {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &row[..] else {
            return None;
        };
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < Slot::COUNT);
        let (first, last) = (slot(*first)?, slot(*last)?);
        let replicas = replicas.iter().filter_map(|replica| endpoint(replica, asked)).collect();
        (first <= last).then_some(Self {
            slots: first..=last,
            primary: endpoint(primary, asked)?,
            replicas,
        })
    }
}

/// Host and port, and more that does not matter here.
fn endpoint(node: &Value, asked: &Place) -> Option<Place> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = &node[..] else { return None };
    let host = match host {
        Value::Nil => None,
        host => Some(text(host)?),
    };
    place_of(host, u16::try_from(*port).ok()?, asked)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// What several nodes say together.
#[derive(Debug)]
pub(super) struct Consensus {
    /// Everybody who was named, each once.
    pub(super) named: Vec<Place>,
    /// The primary of each slot, by its number among them.
    pub(super) owners: Vec<Option<usize>>,
}

/// How much speaks for one owner of a slot: whether it says so itself, and how many do.
type Weight = (bool, usize);

impl Consensus {
    /// Heard are those for whom the Cluster works, if there are any, and among them those of the
    /// latest epoch. Where they differ, a slot belongs to whoever claims it for itself, and
    /// otherwise to whom most of them say.
    pub(super) fn of(mut views: Vec<View>) -> Self {
        if views.iter().any(|view| view.settled) {
            views.retain(|view| view.settled);
        }
        let epoch = views.iter().map(|view| view.epoch).max().unwrap_or(0);
        views.retain(|view| view.epoch == epoch);
        let mut names = Names::default();
        let mut opinions = Vec::new();
        for view in &views {
            let mut opinion = vec![None; usize::from(Slot::COUNT)];
            for shard in &view.shards {
                let (first, last) = (usize::from(*shard.slots.start()), *shard.slots.end());
                let owner = names.number(&shard.primary);
                opinion[first..=usize::from(last)].fill(Some((owner, shard.primary == view.by)));
                for replica in &shard.replicas {
                    names.number(replica);
                }
            }
            opinions.push(opinion);
        }
        let mut weights: Vec<(usize, Weight)> = Vec::new();
        let mut owner_of = |slot: usize| {
            weights.clear();
            for (owner, claims) in opinions.iter().filter_map(|opinion| opinion[slot]) {
                match weights.iter_mut().find(|(other, _)| *other == owner) {
                    Some((_, weight)) => *weight = (weight.0 || claims, weight.1 + 1),
                    None => weights.push((owner, (claims, 1))),
                }
            }
            weights.iter().max_by_key(|(_, weight)| *weight).map(|(owner, _)| *owner)
        };
        let owners = (0..usize::from(Slot::COUNT)).map(&mut owner_of).collect();
        Self { named: names.places, owners }
    }
}

/// Places, numbered in the order in which they came.
#[derive(Default)]
struct Names {
    places: Vec<Place>,
    numbers: HashMap<Place, usize>,
}

impl Names {
    fn number(&mut self, place: &Place) -> usize {
        if let Some(number) = self.numbers.get(place) {
            return *number;
        }
        self.places.push(place.clone());
        self.numbers.insert(place.clone(), self.places.len() - 1);
        self.places.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Place {
        Place::Tcp { host: "10.0.0.1".to_owned(), port }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn row(first: i64, last: i64, nodes: &[(Value, i64)]) -> Value {
        let node = |(host, port): &(Value, i64)| {
            Value::Array(vec![host.clone(), Value::Int(*port), bulk("id"), Value::Array(vec![])])
        };
        let head = [Value::Int(first), Value::Int(last)].into_iter();
        Value::Array(head.chain(nodes.iter().map(node)).collect())
    }

    /// What the node at `by` says: from each first slot on, the primary at that port.
    fn view(by: u16, state: &str, epoch: u64, shards: &[(i64, u16)]) -> View {
        let ends = shards.iter().skip(1).map(|(next, _)| next - 1).chain([16_383]);
        let rows = shards.iter().zip(ends).map(|((first, port), last)| {
            row(*first, last, &[(bulk("10.0.0.1"), i64::from(*port))])
        });
        let info = bulk(&format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"));
        View::read(&at(by), Some(&info), &Value::Array(rows.collect())).unwrap()
    }

    fn owner(found: &Consensus, slot: usize) -> Option<&Place> {
        found.owners[slot].map(|owner| &found.named[owner])
    }

    #[test]
    fn a_view_names_primaries_and_replicas_wherever_they_say_they_are() {
        let rows = Value::Array(vec![
            row(0, 99, &[(bulk("10.0.0.2"), 1), (bulk("host.example"), 2)]),
            row(100, 199, &[(Value::Nil, 3), (bulk(""), 4), (bulk("?"), 5), (bulk("x y"), 6)]),
        ]);
        let view = View::read(&at(9), None, &rows).unwrap();
        assert!(view.settled, "a node that may not be asked counts as one that serves");
        let found = Consensus::of(vec![view]);
        assert_eq!(owner(&found, 99), Some(&Place::Tcp { host: "10.0.0.2".to_owned(), port: 1 }));
        assert_eq!((owner(&found, 100), owner(&found, 200)), (Some(&at(3)), None));
        let named = found.named;
        assert!(named.contains(&Place::Tcp { host: "host.example".to_owned(), port: 2 }));
        assert!(named.contains(&at(4)) && named.contains(&at(5)));
        assert_eq!(named.len(), 5, "a replica that cannot be read is left out");
    }

    #[test]
    fn a_view_that_cannot_be_read_is_none() {
        let host = || bulk("10.0.0.2");
        for slots in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![row(0, 5, &[])]),
            Value::Array(vec![row(-1, 5, &[(host(), 1)])]),
            Value::Array(vec![row(6, 5, &[(host(), 1)])]),
            Value::Array(vec![row(0, 16_384, &[(host(), 1)])]),
            Value::Array(vec![row(0, i64::MAX, &[(host(), 1)])]),
            Value::Array(vec![row(0, 5, &[(host(), 0)])]),
            Value::Array(vec![row(0, 5, &[(host(), 65_536)])]),
            Value::Array(vec![row(0, 5, &[(Value::Int(1), 1)])]),
            Value::Array(vec![row(0, 5, &[(host(), 1)]), row(6, 7, &[(host(), -1)])]),
        ] {
            assert_eq!(View::read(&at(9), None, &slots), None, "{slots:?}");
        }
        let unknown = Value::Array(vec![row(0, 5, &[(Value::Nil, 1)])]);
        assert_eq!(View::read(&Place::Unix("/run/redis".into()), None, &unknown), None);
    }

    #[test]
    fn views_that_differ_are_weighed() {
        for (what, views, expected) in [
            ("one says all there is", vec![view(1, "fail", 3, &[(0, 1)])], 1),
            (
                "who was cut off and knows it is not heard",
                vec![view(1, "fail", 9, &[(0, 1)]), view(2, "ok", 9, &[(0, 2)])],
                2,
            ),
            (
                "who was cut off and does not know it is behind",
                vec![view(1, "ok", 8, &[(0, 1)]), view(2, "ok", 9, &[(0, 2)])],
                2,
            ),
            (
                "the new owner knows it first",
                vec![
                    view(5, "ok", 9, &[(0, 1)]),
                    view(6, "ok", 9, &[(0, 1)]),
                    view(2, "ok", 9, &[(0, 2)]),
                ],
                2,
            ),
            (
                "of two who claim it, most decide",
                vec![
                    view(1, "ok", 9, &[(0, 1)]),
                    view(5, "ok", 9, &[(0, 2)]),
                    view(2, "ok", 9, &[(0, 2)]),
                ],
                2,
            ),
            (
                "nobody who was asked claims it",
                vec![
                    view(5, "ok", 9, &[(0, 1)]),
                    view(6, "ok", 9, &[(0, 2)]),
                    view(7, "ok", 9, &[(0, 2)]),
                ],
                2,
            ),
        ] {
            assert_eq!(owner(&Consensus::of(views), 7), Some(&at(expected)), "{what}");
        }
    }
}
