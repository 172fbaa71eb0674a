//! The events of the live page: changed sections, every second.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::Mutex;

use super::super::state::ConsoleContext;
use super::super::user::ConsoleUser;
use super::query::LiveQuery;
use super::rules;
use super::sections::{self, Sections, wrapped};
use crate::observe::traffic::{TickCache, WindowSeconds};
use crate::policy::RulePage;
use crate::transport::http::AppState;
use crate::transport::http::event_stream::{EventSource, PendingBytes};

/// Sections rendered in the current second, by query.
#[derive(Default, Debug)]
pub(crate) struct SectionCache(Mutex<TickCache<LiveQuery, Sections>>);

impl SectionCache {
    /// Upper bound of the cached queries; further ones are rendered for every page.
    const MAX_QUERIES: usize = 32;

    /// The sections after the last second.
    pub(super) async fn sections(&self, app: &AppState, query: &LiveQuery) -> Sections {
        let traffic = app.service.traffic();
        let mut cache = self.0.lock().await;
        if let Some(sections) = cache.get(*traffic.ticks().borrow(), query) {
            return sections;
        }
        let snapshot = traffic.latest(WindowSeconds::MAX, app.current_status()).await;
        let sections = snapshot.map_or([].into(), |snapshot| {
            // Without calls, the page lists rules that can be called.
            let policy = match snapshot.rules.is_empty() {
                true => app.policies.rule_page("", 0, rules::MAX_EXAMPLES),
                false => RulePage::default(),
            };
            sections::all(&snapshot, query, &policy)
        });
        cache.keep(Self::MAX_QUERIES, query.clone(), &sections);
        sections
    }
}

/// The events of one open page.
pub(super) struct SectionEvents {
    pub(super) context: ConsoleContext,
    pub(super) cache: Arc<SectionCache>,
    pub(super) query: LiveQuery,
    /// The headers of the request: the stream ends with the session in them.
    pub(super) headers: HeaderMap,
    /// The sections that were sent last.
    pub(super) sent: Sections,
}

impl EventSource for SectionEvents {
    async fn event(&mut self, app: &AppState) -> Option<Option<PendingBytes>> {
        if !ConsoleUser::of(&self.context, &self.headers).can_read() {
            return None;
        }
        let sections = self.cache.sections(app, &self.query).await;
        let mut event = String::from("event: sections\n");
        for (nth, (id, section)) in sections.iter().enumerate() {
            if self.sent.get(nth).is_none_or(|(_, sent)| sent != section) {
                let html = wrapped(id, section).into_string();
                html.lines().for_each(|line| event.extend(["data: ", line, "\n"]));
            }
        }
        event.push('\n');
        self.sent = sections;
        Some(Some(PendingBytes { rest: event.into(), _permit: None }))
    }
}
