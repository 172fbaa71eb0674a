//! YAML as a tree with positions.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{
    ErrorKind, Event, Parser, ScalarStyle, ScanError, StructureStyle,
};

use super::tree::{MapEntry, NodeKind, QuotedText, Scalar, YamlNode, shown};
use crate::errors::problem::{Finding, Problems};
use crate::errors::redact;
use crate::errors::sources::{SourceFiles, SourceId, SourceSpan};

/// Upper bound of the values in one file, with aliases expanded.
const MAX_NODES: usize = 250_000;
/// Upper bound of the nesting of values.
const MAX_DEPTH: usize = 32;

/// Parses one file. `None` if it is empty or not YAML; `found` then has the error.
pub(crate) fn parse(
    source: SourceId,
    sources: &mut SourceFiles,
    found: &mut Vec<Finding>,
) -> Option<YamlNode> {
    let text = sources.text(source);
    let mut builder = Builder { source, text, ..Builder::default() };
    let outcome = builder.run();
    let Builder { root, secrets, open, found: mut faults, .. } = builder;
    let mut secrets = secrets;
    if let Err(fault) = outcome {
        // The value of an open secret field is not parsed, so everything after the name is hidden.
        let pending = open.iter().filter_map(|open| open.key.as_ref());
        let hides = |key: &&(String, SourceSpan)| redact::is_secret(&key.0) || key.0 == "store";
        secrets.extend(pending.filter(hides).map(|(_, span)| SourceSpan {
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
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, (YamlNode, usize)>,
    nodes: usize,
    documents: usize,
    /// End of the last value.
    reached: usize,
    root: Option<YamlNode>,
    secrets: Vec<SourceSpan>,
    found: Vec<Finding>,
}

impl Default for Builder<'_> {
    fn default() -> Self {
        Self {
            source: SourceSpan::NOWHERE.source,
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

/// A list or map whose end has not been parsed yet.
struct OpenCollection {
    span: SourceSpan,
    style: StructureStyle,
    anchor: usize,
    inside: CollectionState,
    /// The name of the field whose value is next.
    key: Option<(String, SourceSpan)>,
    nodes_before: usize,
}

enum CollectionState {
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

impl Builder<'_> {
    fn run(&mut self) -> Result<(), Finding> {
        let mut at = 0;
        for next in Parser::new_from_str(self.text) {
            let (event, span) = next.map_err(|error| self.broken(&error, at))?;
            let range = span.byte_range().unwrap_or(at..at);
            if event.tag().is_some() {
                let tag = span.tag_start().and_then(|tag| tag.byte_offset()).unwrap_or(range.start);
                let message = "YAML tags are not supported; remove the !tag";
                self.found.push(Finding::new(self.span(tag, tag), "", message));
            }
            let span = self.span(range.start, range.end);
            at = span.end;
            self.take(event, span)?;
        }
        Ok(())
    }

    fn span(&self, start: usize, end: usize) -> SourceSpan {
        let boundary = |at: usize| (at..=self.text.len()).find(|&i| self.text.is_char_boundary(i));
        let start = boundary(start).unwrap_or(self.text.len());
        let end = boundary(end).unwrap_or(self.text.len()).max(start);
        SourceSpan { source: self.source, start, end }
    }

    fn take(&mut self, event: Event<'_>, span: SourceSpan) -> Result<(), Finding> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "only one YAML document per file; use include";
                    return Err(Finding::new(span, "", message));
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
                self.begin(CollectionState::List(Vec::new()), style, anchor, span)?;
            }
            Event::MappingStart(style, anchor, _) => {
                self.begin(CollectionState::Map(Vec::new()), style, anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span)?,
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor) else {
                    let message = "recursive alias; write the value out";
                    return Err(Finding::new(span, "", message));
                };
                let size = *size;
                // Checked before copying: a few nested aliases can expand to billions of values.
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

    fn count(&mut self, nodes: usize, span: SourceSpan) -> Result<(), Finding> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES { Err(too_many(span)) } else { Ok(()) }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, span: SourceSpan) -> YamlNode {
        let quoted = style != ScalarStyle::Plain;
        if !quoted && ["", "~", "null", "Null", "NULL"].contains(&text) {
            return YamlNode { span, kind: NodeKind::Nothing };
        }
        let start = span.start + usize::from(quoted);
        let letters = (self.text.get(start..start + text.len()) == Some(text)).then_some(start);
        let scalar = Scalar { text: text.into(), quoted, letters, shown: shown(text) };
        YamlNode { span, kind: NodeKind::Scalar(scalar) }
    }

    fn begin(
        &mut self,
        inside: CollectionState,
        style: StructureStyle,
        anchor: usize,
        span: SourceSpan,
    ) -> Result<(), Finding> {
        if self.open.len() == MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels");
            return Err(Finding::new(span, "", message));
        }
        let nodes_before = self.nodes;
        self.count(1, span)?;
        self.open.push(OpenCollection { span, style, anchor, inside, key: None, nodes_before });
        Ok(())
    }

    fn end(&mut self, end: SourceSpan) -> Result<(), Finding> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let OpenCollection { span, style, anchor, inside, nodes_before, .. } = open;
        if style == StructureStyle::Flow {
            self.reached = end.end;
        }
        // The parser ends a block at the next token; its last value ends earlier.
        let span = SourceSpan { end: self.reached.max(span.start), ..span };
        let kind = match inside {
            CollectionState::List(items) => NodeKind::List(items),
            CollectionState::Map(entries) => NodeKind::Map(self.merged(entries)),
        };
        self.complete(YamlNode { span, kind }, anchor, self.nodes - nodes_before)
    }

    /// Adds a node to the innermost open collection.
    fn complete(&mut self, node: YamlNode, anchor: usize, size: usize) -> Result<(), Finding> {
        if anchor != 0 {
            // The copy counts, because nested anchors multiply.
            self.count(size, node.span)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.inside, open.key.take()) {
            (CollectionState::List(items), _) => items.push(node),
            (CollectionState::Map(_), None) => {
                let name = match node.kind {
                    NodeKind::Scalar(scalar) if scalar.quoted || scalar.text != MERGE => {
                        scalar.text
                    }
                    NodeKind::Scalar(_) => MERGE_FIELD.into(),
                    NodeKind::Nothing
                    | NodeKind::Unknown
                    | NodeKind::List(_)
                    | NodeKind::Map(_) => {
                        let message = "field names must be strings";
                        self.found.push(Finding::new(node.span, "", message));
                        NO_FIELD.into()
                    }
                };
                open.key = Some((name, node.span));
            }
            (CollectionState::Map(entries), Some((key, key_span))) => {
                if redact::is_secret(&key) {
                    self.secrets.push(node.span);
                } else if key == "store" {
                    let written = self.text.get(node.span.start..node.span.end).unwrap_or("");
                    let hidden = redact::in_url(written).into_iter();
                    let start = node.span.start;
                    self.secrets.extend(hidden.map(|range| SourceSpan {
                        start: start + range.start,
                        end: start + range.end,
                        ..node.span
                    }));
                }
                entries.push(MapEntry { key, key_span, value: node });
            }
        }
        Ok(())
    }

    /// The fields without duplicates, and those merged by `<<` that the map does not have itself.
    fn merged(&mut self, entries: Vec<MapEntry>) -> Vec<MapEntry> {
        let mut first: HashMap<String, SourceSpan> = HashMap::new();
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
                Some(&before) => self.duplicate_field(&entry, before),
                None => {
                    first.insert(entry.key.clone(), entry.key_span);
                    fields.push(entry);
                }
            }
        }
        for MapEntry { key_span, value, .. } in merges {
            let maps = match value.kind {
                NodeKind::List(items) => items,
                kind => vec![YamlNode { kind, ..value }],
            };
            for map in maps {
                let NodeKind::Map(inherited) = map.kind else {
                    let message = "<< expects a map or a list of maps, usually an *alias";
                    self.found.push(Finding::new(key_span, "", message));
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

    fn duplicate_field(&mut self, entry: &MapEntry, before: SourceSpan) {
        if self.found.len() > Problems::MAX {
            return;
        }
        let line = self.text[..before.start.min(self.text.len())].matches('\n').count() + 1;
        let key = QuotedText(&entry.key);
        let message = format!("duplicate field {key}, first in line {line}; remove one");
        self.found.push(Finding::new(entry.key_span, "", message));
    }

    fn broken(&self, error: &ScanError, at: usize) -> Finding {
        let marker = error.marker();
        let start = marker.byte_offset().unwrap_or_else(|| {
            let mut chars = self.text.char_indices();
            chars.nth(marker.index()).map_or(self.text.len(), |(offset, _)| offset)
        });
        // An error at the end of the file is reported before the trailing blank lines.
        let start = start.min(self.text.trim_end().len().max(at.min(self.text.len())));
        let span = self.span(start, start);
        let line_start = self.text[..span.start].rfind('\n').map_or(0, |i| i + 1);
        let line = self.text[line_start..].lines().next().unwrap_or("");
        let advice = match error.kind() {
            ErrorKind::UnknownAnchor | ErrorKind::MissingAnchorOrAliasName => {
                "; quote text that begins with * or &"
            }
            ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation => "; use spaces",
            ErrorKind::BlockEntryInFlowCollection | ErrorKind::UnclosedFlowCollection { .. } => {
                "; close the bracket above"
            }
            ErrorKind::RecursionLimitExceeded => "; nested too deep",
            _ if line.contains("${") => "; inside brackets, quote text with ${",
            _ => "",
        };
        Finding::new(span, "", format!("invalid YAML: {}{advice}", error.kind()))
    }
}

/// The merge key in the file.
const MERGE: &str = "<<";
/// Internal names of the merge key and of a field whose name is not a string. A file cannot
/// contain them.
const MERGE_FIELD: &str = "\0<<";
const NO_FIELD: &str = "\0";

fn too_many(span: SourceSpan) -> Finding {
    Finding::new(
        span,
        "",
        format!("more than {MAX_NODES} values in one file; split it and use include"),
    )
}
