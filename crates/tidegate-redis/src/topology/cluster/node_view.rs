//! The slot map that one node reports, and the consensus of several nodes.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::Value;

use super::redirect::endpoint_of;
use crate::connection::endpoint::Endpoint;
use crate::topology::hash_slot::HashSlot;

/// The slot map of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodeView {
    by: Endpoint,
    /// The node reports that the Cluster is ok. A partitioned node does not.
    pub(crate) is_ok: bool,
    /// Grows with every failover and every migrated slot; a partitioned node stays behind.
    epoch: u64,
    ranges: Vec<SlotRange>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct SlotRange {
    slots: RangeInclusive<u16>,
    primary: Endpoint,
    replicas: Vec<Endpoint>,
}

impl NodeView {
    /// From the replies of `by` to `CLUSTER INFO`, if that is permitted, and to `CLUSTER SLOTS`.
    /// None if they are malformed, or name no slot.
    pub(crate) fn read(by: &Endpoint, info: Option<&Value>, slots: &Value) -> Option<Self> {
        let info = info.and_then(text).unwrap_or_default();
        let field = |name: &str| {
            info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
        };
        let Value::Array(rows) = slots else { return None };
        let ranges: Vec<SlotRange> =
            rows.iter().map(|row| SlotRange::read(row, by)).collect::<Option<_>>()?;
        Some(Self {
            by: by.clone(),
            is_ok: field("cluster_state").is_none_or(|state| state == "ok"),
            epoch: field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
            ranges,
        })
        .filter(|view| !view.ranges.is_empty())
    }
}

impl SlotRange {
    /// First slot, last slot, the primary, its replicas.
    fn read(row: &Value, queried: &Endpoint) -> Option<Self> {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &row[..] else {
            return None;
        };
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < HashSlot::COUNT);
        let (first, last) = (slot(*first)?, slot(*last)?);
        let replicas = replicas.iter().filter_map(|replica| endpoint(replica, queried)).collect();
        (first <= last).then_some(Self {
            slots: first..=last,
            primary: endpoint(primary, queried)?,
            replicas,
        })
    }
}

/// Host and port; the other fields are not used.
fn endpoint(node: &Value, queried: &Endpoint) -> Option<Endpoint> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = &node[..] else { return None };
    let host = match host {
        Value::Nil => None,
        host => Some(text(host)?),
    };
    endpoint_of(host, u16::try_from(*port).ok()?, queried)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// The slot map that several nodes agree on.
#[derive(Debug)]
pub(crate) struct Consensus {
    /// All nodes, each once.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The primary of each slot, as an index into `endpoints`.
    pub(crate) owners: Vec<Option<usize>>,
}

/// The votes for one owner of a slot: whether it claims the slot itself, and how many nodes agree.
type VoteWeight = (bool, usize);

impl Consensus {
    /// Only views that report the Cluster as ok count, if there are any, and of these only views of
    /// the latest epoch. Where they differ, the owner of a slot is the node that claims it, and
    /// otherwise the one that most views name.
    pub(crate) fn of(mut views: Vec<NodeView>) -> Self {
        if views.iter().any(|view| view.is_ok) {
            views.retain(|view| view.is_ok);
        }
        let epoch = views.iter().map(|view| view.epoch).max().unwrap_or(0);
        views.retain(|view| view.epoch == epoch);
        let mut index = EndpointIndex::default();
        let mut votes = Vec::new();
        for view in &views {
            let mut vote = vec![None; usize::from(HashSlot::COUNT)];
            for range in &view.ranges {
                let (first, last) = (usize::from(*range.slots.start()), *range.slots.end());
                let owner = index.of(&range.primary);
                vote[first..=usize::from(last)].fill(Some((owner, range.primary == view.by)));
                for replica in &range.replicas {
                    index.of(replica);
                }
            }
            votes.push(vote);
        }
        let mut weights: Vec<(usize, VoteWeight)> = Vec::new();
        let mut owner_of = |slot: usize| {
            weights.clear();
            for (owner, claims) in votes.iter().filter_map(|vote| vote[slot]) {
                match weights.iter_mut().find(|(other, _)| *other == owner) {
                    Some((_, weight)) => *weight = (weight.0 || claims, weight.1 + 1),
                    None => weights.push((owner, (claims, 1))),
                }
            }
            weights.iter().max_by_key(|(_, weight)| *weight).map(|(owner, _)| *owner)
        };
        let owners = (0..usize::from(HashSlot::COUNT)).map(&mut owner_of).collect();
        Self { endpoints: index.endpoints, owners }
    }
}

/// Endpoints, numbered in the order of their first use.
#[derive(Default)]
struct EndpointIndex {
    endpoints: Vec<Endpoint>,
    indexes: HashMap<Endpoint, usize>,
}

impl EndpointIndex {
    fn of(&mut self, endpoint: &Endpoint) -> usize {
        if let Some(index) = self.indexes.get(endpoint) {
            return *index;
        }
        self.endpoints.push(endpoint.clone());
        self.indexes.insert(endpoint.clone(), self.endpoints.len() - 1);
        self.endpoints.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Endpoint {
        Endpoint::Tcp { host: "10.0.0.1".to_owned(), port }
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

    /// The view of the node at `by`: from each first slot on, the primary at that port.
    fn view(by: u16, state: &str, epoch: u64, ranges: &[(i64, u16)]) -> NodeView {
        let ends = ranges.iter().skip(1).map(|(next, _)| next - 1).chain([16_383]);
        let rows = ranges.iter().zip(ends).map(|((first, port), last)| {
            row(*first, last, &[(bulk("10.0.0.1"), i64::from(*port))])
        });
        let info = bulk(&format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"));
        NodeView::read(&at(by), Some(&info), &Value::Array(rows.collect())).unwrap()
    }

    fn owner(consensus: &Consensus, slot: usize) -> Option<&Endpoint> {
        consensus.owners[slot].map(|owner| &consensus.endpoints[owner])
    }

    #[test]
    fn a_view_has_primaries_and_replicas_at_their_reported_endpoints() {
        let rows = Value::Array(vec![
            row(0, 99, &[(bulk("10.0.0.2"), 1), (bulk("host.example"), 2)]),
            row(100, 199, &[(Value::Nil, 3), (bulk(""), 4), (bulk("?"), 5), (bulk("x y"), 6)]),
        ]);
        let view = NodeView::read(&at(9), None, &rows).unwrap();
        assert!(view.is_ok, "a node without CLUSTER INFO counts as ok");
        let consensus = Consensus::of(vec![view]);
        assert_eq!(
            owner(&consensus, 99),
            Some(&Endpoint::Tcp { host: "10.0.0.2".to_owned(), port: 1 })
        );
        assert_eq!((owner(&consensus, 100), owner(&consensus, 200)), (Some(&at(3)), None));
        let endpoints = consensus.endpoints;
        assert!(endpoints.contains(&Endpoint::Tcp { host: "host.example".to_owned(), port: 2 }));
        assert!(endpoints.contains(&at(4)) && endpoints.contains(&at(5)));
        assert_eq!(endpoints.len(), 5, "a malformed replica is left out");
    }

    #[test]
    fn a_malformed_view_is_none() {
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
            assert_eq!(NodeView::read(&at(9), None, &slots), None, "{slots:?}");
        }
        let unknown = Value::Array(vec![row(0, 5, &[(Value::Nil, 1)])]);
        assert_eq!(NodeView::read(&Endpoint::Unix("/run/redis".into()), None, &unknown), None);
    }

    #[test]
    fn claims_then_majorities_decide_between_different_views() {
        for (what, views, expected) in [
            ("there is one view", vec![view(1, "fail", 3, &[(0, 1)])], 1),
            (
                "a partitioned node that knows it does not count",
                vec![view(1, "fail", 9, &[(0, 1)]), view(2, "ok", 9, &[(0, 2)])],
                2,
            ),
            (
                "a partitioned node that does not know it has an older epoch",
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
                "two nodes claim it, and the majority decides",
                vec![
                    view(1, "ok", 9, &[(0, 1)]),
                    view(5, "ok", 9, &[(0, 2)]),
                    view(2, "ok", 9, &[(0, 2)]),
                ],
                2,
            ),
            (
                "no node claims it",
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
