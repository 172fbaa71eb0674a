//! What somebody wants to see of what goes on.

use super::super::form::Fields;

/// Which rules, in which order.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct View {
    pub(super) sort: Sort,
    /// In the names of rules.
    pub(super) filter: String,
    /// From 0.
    pub(super) page: usize,
}

/// The order of rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) enum Sort {
    /// Most calls first.
    #[default]
    Busiest,
    /// Most denials first.
    Denied,
    /// By name.
    Name,
}

impl Sort {
    pub(super) const ALL: [Self; 3] = [Self::Busiest, Self::Denied, Self::Name];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Busiest => "busiest",
            Self::Denied => "denied",
            Self::Name => "name",
        }
    }
}

impl View {
    /// The most rules that are shown at a time.
    pub(super) const RULES: usize = 20;
    /// The longest name of a rule is not longer.
    const MAX_FILTER: usize = 64;

    /// What cannot be read is as if it had not been said.
    pub(super) fn read(fields: &Fields) -> Self {
        let sort = Sort::ALL.into_iter().find(|sort| sort.name() == fields.text("sort"));
        let filter = fields.text("filter").trim().chars().take(Self::MAX_FILTER).collect();
        let page = fields.text("page").parse::<usize>().unwrap_or(1).clamp(1, 1_000);
        Self { sort: sort.unwrap_or_default(), filter, page: page - 1 }
    }

    /// The same, to be put behind an address.
    pub(super) fn query(&self) -> String {
        let Self { sort, filter, page } = self;
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        format!("?sort={}&filter={filter}&page={}", sort.name(), page + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_what_its_address_says() {
        let view = View::read(&Fields::read(b"sort=denied&filter=+a%26b&page=3"));
        assert_eq!(view, View { sort: Sort::Denied, filter: "a&b".into(), page: 2 });
        assert_eq!(View::read(&Fields::read(&view.query().as_bytes()[1..])), view);
        let wild = format!("sort=%00&page=-1&filter={}", "x".repeat(10_000));
        let view = View::read(&Fields::read(wild.as_bytes()));
        assert_eq!((view.sort, view.page, view.filter.len()), (Sort::Busiest, 0, 64));
    }
}
