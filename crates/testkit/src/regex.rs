//! A matcher for the regular expressions of the project's schemas: literals, `.`, classes, groups,
//! `|`, `*`, `+`, `?`, `{m,n}`, `^` and `$`. Anything else is an error.

/// Whether the pattern occurs in the text.
pub(crate) fn is_match(pattern: &str, text: &str) -> Result<bool, String> {
    let mut reader = PatternReader { rest: pattern.chars().collect(), pattern };
    reader.rest.reverse();
    let node = reader.either()?;
    if let Some(left) = reader.rest.pop() {
        return Err(format!("{pattern}: {left:?} is an unknown pattern"));
    }
    let text: Vec<char> = text.chars().collect();
    Ok((0..=text.len()).any(|start| node.matches(&text, start, &|_| true)))
}

enum Node {
    Start,
    End,
    Any,
    Class { negated: bool, ranges: Vec<(char, char)> },
    All(Vec<Node>),
    Either(Vec<Node>),
    Repeat { node: Box<Node>, min: usize, max: usize },
}

impl Node {
    /// Whether the node matches at `at`, and `then` matches the rest.
    fn matches(&self, text: &[char], at: usize, then: &dyn Fn(usize) -> bool) -> bool {
        match self {
            Self::Start => at == 0 && then(at),
            Self::End => at == text.len() && then(at),
            Self::Any => at < text.len() && text[at] != '\n' && then(at + 1),
            Self::Class { negated, ranges } => {
                let is_in = |c: &char| ranges.iter().any(|(from, to)| (from..=to).contains(&c));
                text.get(at).is_some_and(|c| is_in(c) != *negated) && then(at + 1)
            }
            Self::All(nodes) => all(nodes, text, at, then),
            Self::Either(nodes) => nodes.iter().any(|node| node.matches(text, at, then)),
            Self::Repeat { node, min, max } => repeat(node, *min, *max, text, at, then),
        }
    }
}

fn all(nodes: &[Node], text: &[char], at: usize, then: &dyn Fn(usize) -> bool) -> bool {
    match nodes.split_first() {
        None => then(at),
        Some((first, rest)) => first.matches(text, at, &|next| all(rest, text, next, then)),
    }
}

fn repeat(
    node: &Node,
    min: usize,
    max: usize,
    text: &[char],
    at: usize,
    then: &dyn Fn(usize) -> bool,
) -> bool {
    let again =
        |next: usize| next > at && repeat(node, min.saturating_sub(1), max - 1, text, next, then);
    (max > 0 && node.matches(text, at, &again)) || (min == 0 && then(at))
}

struct PatternReader<'a> {
    /// Remaining characters, reversed.
    rest: Vec<char>,
    pattern: &'a str,
}

impl PatternReader<'_> {
    fn either(&mut self) -> Result<Node, String> {
        let mut ways = vec![self.sequence()?];
        while self.take('|') {
            ways.push(self.sequence()?);
        }
        Ok(Node::Either(ways))
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while self.rest.last().is_some_and(|c| !matches!(c, '|' | ')')) {
            let node = self.one()?;
            nodes.push(self.repeated(node)?);
        }
        Ok(Node::All(nodes))
    }

    fn one(&mut self) -> Result<Node, String> {
        let literal = |c| Node::Class { negated: false, ranges: vec![(c, c)] };
        match self.next()? {
            '^' => Ok(Node::Start),
            '$' => Ok(Node::End),
            '.' => Ok(Node::Any),
            '[' => self.class(),
            '(' => {
                let inner = self.either()?;
                if self.take(')') { Ok(inner) } else { Err(self.broken()) }
            }
            '\\' => match self.next()? {
                letter if letter.is_alphanumeric() => Err(self.broken()),
                c => Ok(literal(c)),
            },
            '*' | '+' | '?' | '{' => Err(self.broken()),
            c => Ok(literal(c)),
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        let negated = self.take('^');
        let mut ranges = Vec::new();
        loop {
            let from = match self.next()? {
                ']' => return Ok(Node::Class { negated, ranges }),
                '\\' | '[' => return Err(self.broken()),
                from => from,
            };
            let is_range =
                self.rest.last() == Some(&'-') && self.rest.iter().nth_back(1) != Some(&']');
            let to = if is_range && self.take('-') { self.next()? } else { from };
            ranges.push((from, to));
        }
    }

    fn repeated(&mut self, node: Node) -> Result<Node, String> {
        let (min, max) = match self.rest.last() {
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('?') => (0, 1),
            Some('{') => {
                let bounds: String =
                    self.rest.iter().rev().skip(1).take_while(|c| **c != '}').collect();
                self.rest.truncate(self.rest.len() - bounds.chars().count() - 1);
                let (min, max) = bounds.split_once(',').ok_or_else(|| self.broken())?;
                let number = |text: &str| text.parse().map_err(|_| self.broken());
                (number(min)?, number(max)?)
            }
            _ => return Ok(node),
        };
        self.next()?;
        Ok(Node::Repeat { node: Box::new(node), min, max })
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest.pop_if(|c| *c == wanted).is_some()
    }

    fn next(&mut self) -> Result<char, String> {
        self.rest.pop().ok_or_else(|| self.broken())
    }

    fn broken(&self) -> String {
        format!("{}: an unknown pattern", self.pattern)
    }
}
