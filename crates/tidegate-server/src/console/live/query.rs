//! The query string of the live page.

use super::super::form::FormFields;

/// Filter, order and page of the rules.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct LiveQuery {
    pub(super) sort: RuleOrder,
    /// Text that the name of a rule must contain.
    pub(super) filter: String,
    /// Counted from 0.
    pub(super) page: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) enum RuleOrder {
    #[default]
    Busiest,
    Denied,
    Name,
}

impl RuleOrder {
    pub(super) const ALL: [Self; 3] = [Self::Busiest, Self::Denied, Self::Name];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Busiest => "busiest",
            Self::Denied => "denied",
            Self::Name => "name",
        }
    }
}

impl LiveQuery {
    pub(super) const PAGE_LEN: usize = 20;
    /// Upper bound of the length of a rule name.
    const MAX_FILTER: usize = 64;

    /// Ignores invalid values.
    pub(super) fn read(fields: &FormFields) -> Self {
        let sort = RuleOrder::ALL.into_iter().find(|sort| sort.name() == fields.text("sort"));
        let filter = fields.text("filter").trim().chars().take(Self::MAX_FILTER).collect();
        let page = fields.text("page").parse::<usize>().unwrap_or(1).clamp(1, 1_000);
        Self { sort: sort.unwrap_or_default(), filter, page: page - 1 }
    }

    /// The query string, with its `?`.
    pub(super) fn encoded(&self) -> String {
        let Self { sort, filter, page } = self;
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        format!("?sort={}&filter={filter}&page={}", sort.name(), page + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_survives_encoding_and_ignores_invalid_values() {
        let query = LiveQuery::read(&FormFields::read(b"sort=denied&filter=+a%26b&page=3"));
        assert_eq!(query, LiveQuery { sort: RuleOrder::Denied, filter: "a&b".into(), page: 2 });
        assert_eq!(LiveQuery::read(&FormFields::read(&query.encoded().as_bytes()[1..])), query);
        let wild = format!("sort=%00&page=-1&filter={}", "x".repeat(10_000));
        let query = LiveQuery::read(&FormFields::read(wild.as_bytes()));
        assert_eq!((query.sort, query.page, query.filter.len()), (RuleOrder::Busiest, 0, 64));
    }
}
