//! As much of regular expressions as our schemas use: literals, `.`, classes, groups, `|`, `*`, `+`,
//! `?`, `{m,n}`, `^` and `$`. Anything else is an error.

/// Does the pattern occur in the text?
pub fn found(pattern: &str, text: &str) -> Result<bool, String> {
    let mut reader = Reader { rest: pattern.chars().collect(), pattern };
    reader.rest.reverse();
    let node = reader.either()?;
    if let Some(left) = reader.rest.pop() {
        return Err(format!("{pattern}: {left:?} is a pattern that this test does not know"));
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
    Repeat { node: Box<Node>, least: usize, most: usize },
}

impl Node {
    /// Does it match from `at` on, so that what follows it matches too?
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
            Self::Repeat { node, least, most } => repeat(node, *least, *most, text, at, then),
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
    least: usize,
    most: usize,
    text: &[char],
    at: usize,
    then: &dyn Fn(usize) -> bool,
) -> bool {
    let again = |next: usize| {
        next > at && repeat(node, least.saturating_sub(1), most - 1, text, next, then)
    };
    (most > 0 && node.matches(text, at, &again)) || (least == 0 && then(at))
}

struct Reader<'a> {
    /// What is left, the next character last.
    rest: Vec<char>,
    pattern: &'a str,
}

impl Reader<'_> {
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
        let (least, most) = match self.rest.last() {
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('?') => (0, 1),
            Some('{') => {
                let bounds: String =
                    self.rest.iter().rev().skip(1).take_while(|c| **c != '}').collect();
                self.rest.truncate(self.rest.len() - bounds.chars().count() - 1);
                let (least, most) = bounds.split_once(',').ok_or_else(|| self.broken())?;
                let number = |text: &str| text.parse().map_err(|_| self.broken());
                (number(least)?, number(most)?)
            }
            _ => return Ok(node),
        };
        self.next()?;
        Ok(Node::Repeat { node: Box::new(node), least, most })
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest.pop_if(|c| *c == wanted).is_some()
    }

    fn next(&mut self) -> Result<char, String> {
        self.rest.pop().ok_or_else(|| self.broken())
    }

    fn broken(&self) -> String {
        format!("{}: a pattern that this test does not know", self.pattern)
    }
}
