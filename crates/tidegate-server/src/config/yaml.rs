//! From YAML to a tree.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{
    ErrorKind, Event, Parser, ScalarStyle, ScanError, StructureStyle,
};

use super::mask;
use super::problem::{Found, Problems};
use super::source::{SourceId, Sources, Span};
use super::tree::{Entry, Kind, Name, Node, Scalar, shown};

/// The most values in one file, what aliases stand for included.
const MAX_NODES: usize = 250_000;
/// How deep values may lie in one another.
const MAX_DEPTH: usize = 32;

/// Reads one file. `None` if it is empty, or so broken that `found` has all there is to say.
pub(crate) fn parse(
    source: SourceId,
    sources: &mut Sources,
    found: &mut Vec<Found>,
) -> Option<Node> {
    let text = sources.text(source);
    let mut builder = Builder { source, text, ..Builder::default() };
    let outcome = builder.run();
    let Builder { root, secrets, open, found: mut faults, .. } = builder;
    let mut secrets = secrets;
    if let Err(fault) = outcome {
        // Whatever stands behind the name of a secret is one, as far as anybody can tell.
        let pending = open.iter().filter_map(|open| open.key.as_ref());
        let hides = |key: &&(String, Span)| mask::is_secret(&key.0) || key.0 == "store";
        secrets.extend(pending.filter(hides).map(|(_, span)| Span {
            start: span.end,
            end: text.len(),
            ..*span
        }));
        faults.push(fault);
    }
    found.append(&mut faults);
    secrets.into_iter().for_each(|span| sources.hide(span));
    root
}

struct Builder<'t> {
    source: SourceId,
    text: &'t str,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    documents: usize,
    /// Where the last value ended.
    reached: usize,
    root: Option<Node>,
    secrets: Vec<Span>,
    found: Vec<Found>,
}

impl Default for Builder<'_> {
    fn default() -> Self {
        Self {
            source: Span::NOWHERE.source,
            text: "",
            open: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
            documents: 0,
            reached: 0,
            root: None,
            secrets: Vec::new(),
            found: Vec::new(),
        }
    }
}

/// A list or map that has begun.
struct Open {
    span: Span,
    style: StructureStyle,
    anchor: usize,
    inside: Inside,
    /// The name of the field whose value comes next.
    key: Option<(String, Span)>,
    nodes_before: usize,
}

enum Inside {
    List(Vec<Node>),
    Map(Vec<Entry>),
}

impl Builder<'_> {
    fn run(&mut self) -> Result<(), Found> {
        let mut at = 0;
        for next in Parser::new_from_str(self.text) {
            let (event, span) = next.map_err(|error| self.broken(&error, at))?;
            let range = span.byte_range().unwrap_or(at..at);
            if event.tag().is_some() {
                let tag = span.tag_start().and_then(|tag| tag.byte_offset()).unwrap_or(range.start);
                let message = "tags are not used here; leave out the word with the !";
                self.found.push(Found::new(self.span(tag, tag), "", message));
            }
            let span = self.span(range.start, range.end);
            at = span.end;
            self.take(event, span)?;
        }
        Ok(())
    }

    fn span(&self, start: usize, end: usize) -> Span {
        let boundary = |at: usize| (at..=self.text.len()).find(|&i| self.text.is_char_boundary(i));
        let start = boundary(start).unwrap_or(self.text.len());
        let end = boundary(end).unwrap_or(self.text.len()).max(start);
        Span { source: self.source, start, end }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Found> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a second document; use one file for each, and include";
                    return Err(Found::new(span, "", message));
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                self.count(1, span)?;
                if !text.is_empty() {
                    self.reached = span.end;
                }
                let node = self.scalar(&text, style, span);
                self.complete(node, anchor, 1)?;
            }
            Event::SequenceStart(style, anchor, _) => {
                self.begin(Inside::List(Vec::new()), style, anchor, span)?;
            }
            Event::MappingStart(style, anchor, _) => {
                self.begin(Inside::Map(Vec::new()), style, anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span)?,
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor) else {
                    let message = "an alias inside of what it stands for; write it out";
                    return Err(Found::new(span, "", message));
                };
                let size = *size;
                // Before the copy is made: a few aliases of aliases can stand for billions.
                if self.nodes + size > MAX_NODES {
                    return Err(too_many(span));
                }
                let node = node.clone();
                self.nodes += size;
                self.reached = span.end;
                self.complete(node, 0, size)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), Found> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES { Err(too_many(span)) } else { Ok(()) }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, span: Span) -> Node {
        let quoted = style != ScalarStyle::Plain;
        if !quoted && ["", "~", "null", "Null", "NULL"].contains(&text) {
            return Node { span, kind: Kind::Nothing };
        }
        let start = span.start + usize::from(quoted);
        let letters = (self.text.get(start..start + text.len()) == Some(text)).then_some(start);
        let scalar = Scalar { text: text.into(), quoted, letters, shown: shown(text) };
        Node { span, kind: Kind::Scalar(scalar) }
    }

    fn begin(
        &mut self,
        inside: Inside,
        style: StructureStyle,
        anchor: usize,
        span: Span,
    ) -> Result<(), Found> {
        if self.open.len() == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} levels; no policy is that deep");
            return Err(Found::new(span, "", message));
        }
        let nodes_before = self.nodes;
        self.count(1, span)?;
        self.open.push(Open { span, style, anchor, inside, key: None, nodes_before });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), Found> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let Open { span, style, anchor, inside, nodes_before, .. } = open;
        if style == StructureStyle::Flow {
            self.reached = end.end;
        }
        // A block ends where the next thing begins; what it holds ends earlier.
        let span = Span { end: self.reached.max(span.start), ..span };
        let kind = match inside {
            Inside::List(items) => Kind::List(items),
            Inside::Map(entries) => Kind::Map(self.merged(entries)),
        };
        self.complete(Node { span, kind }, anchor, self.nodes - nodes_before)
    }

    /// Puts a node into what it stands in.
    fn complete(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), Found> {
        if anchor != 0 {
            // The copy counts: anchors around anchors would be many.
            self.count(size, node.span)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.inside, open.key.take()) {
            (Inside::List(items), _) => items.push(node),
            (Inside::Map(_), None) => {
                let name = match node.kind {
                    Kind::Scalar(scalar) if scalar.quoted || scalar.text != MERGE => scalar.text,
                    Kind::Scalar(_) => MERGE_FIELD.into(),
                    Kind::Nothing | Kind::Unknown | Kind::List(_) | Kind::Map(_) => {
                        let message = "the name of a field must be text";
                        self.found.push(Found::new(node.span, "", message));
                        NO_FIELD.into()
                    }
                };
                open.key = Some((name, node.span));
            }
            (Inside::Map(entries), Some((key, key_span))) => {
                if mask::is_secret(&key) {
                    self.secrets.push(node.span);
                } else if key == "store" {
                    let written = self.text.get(node.span.start..node.span.end).unwrap_or("");
                    let hidden = mask::in_url(written).into_iter();
                    let start = node.span.start;
                    self.secrets.extend(hidden.map(|range| Span {
                        start: start + range.start,
                        end: start + range.end,
                        ..node.span
                    }));
                }
                entries.push(Entry { key, key_span, value: node });
            }
        }
        Ok(())
    }

    /// The fields, each once, with those of `<<` that are not there themselves.
    fn merged(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut first: HashMap<String, Span> = HashMap::new();
        let mut fields = Vec::with_capacity(entries.len());
        let mut merges = Vec::new();
        for entry in entries {
            if entry.key == NO_FIELD {
                continue;
            }
            if entry.key == MERGE_FIELD {
                merges.push(entry);
                continue;
            }
            match first.get(&entry.key) {
                Some(&before) => self.given_twice(&entry, before),
                None => {
                    first.insert(entry.key.clone(), entry.key_span);
                    fields.push(entry);
                }
            }
        }
        for Entry { key_span, value, .. } in merges {
            let maps = match value.kind {
                Kind::List(items) => items,
                kind => vec![Node { kind, ..value }],
            };
            for map in maps {
                let Kind::Map(inherited) = map.kind else {
                    let message = "<< takes a map or a list of maps, mostly an *alias";
                    self.found.push(Found::new(key_span, "", message));
                    continue;
                };
                for entry in inherited {
                    if first.insert(entry.key.clone(), entry.key_span).is_none() {
                        fields.push(entry);
                    }
                }
            }
        }
        fields
    }

    fn given_twice(&mut self, entry: &Entry, before: Span) {
        if self.found.len() > Problems::MAX {
            return;
        }
        let line = self.text[..before.start.min(self.text.len())].matches('\n').count() + 1;
        let key = Name(&entry.key);
        let message = format!("{key} is given twice, first in line {line}; remove one");
        self.found.push(Found::new(entry.key_span, "", message));
    }

    fn broken(&self, error: &ScanError, at: usize) -> Found {
        let marker = error.marker();
        let start = marker.byte_offset().unwrap_or_else(|| {
            let mut chars = self.text.char_indices();
            chars.nth(marker.index()).map_or(self.text.len(), |(offset, _)| offset)
        });
        // An error at the end of the file is about something before the blank lines there.
        let start = start.min(self.text.trim_end().len().max(at.min(self.text.len())));
        let span = self.span(start, start);
        let line_start = self.text[..span.start].rfind('\n').map_or(0, |i| i + 1);
        let line = self.text[line_start..].lines().next().unwrap_or("");
        let advice = match error.kind() {
            ErrorKind::UnknownAnchor | ErrorKind::MissingAnchorOrAliasName => {
                "; put text that begins with * or & into quotes"
            }
            ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation => "; use spaces",
            ErrorKind::BlockEntryInFlowCollection | ErrorKind::UnclosedFlowCollection { .. } => {
                "; close the bracket above"
            }
            ErrorKind::RecursionLimitExceeded => "; no policy is that deep",
            _ if line.contains("${") => "; inside brackets, put text with ${ into quotes",
            _ => "",
        };
        Found::new(span, "", format!("not YAML: {}{advice}", error.kind()))
    }
}

/// A merge key as it is written.
const MERGE: &str = "<<";
/// What it goes by here, and what a field without a name does: no field can.
const MERGE_FIELD: &str = "\0<<";
const NO_FIELD: &str = "\0";

fn too_many(span: Span) -> Found {
    Found::new(span, "", format!("more than {MAX_NODES} values in one file; split it, and include"))
}
