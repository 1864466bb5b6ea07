//! A YAML file as a tree of values that know their lines. What they mean is for others to say.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle};

use super::problem::Problem;

/// So many values are the most, those that an alias repeats counted each time: a small file may repeat them without end.
const MOST_VALUES: usize = 500_000;
/// No field lies deeper than half of this.
const MOST_DEPTH: usize = 32;

/// A value and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
    /// How many values it is made of.
    size: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    /// Anything that is written as one word or text. Only a plain one can be a number, a switch, or nothing.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Rc<Node>>),
    Map(Vec<Entry>),
}

/// A name in a mapping, and what it stands for.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Of the name.
    pub(super) line: u64,
    pub(super) node: Rc<Node>,
}

impl Node {
    fn new(line: u64, value: Value) -> Self {
        let size = match &value {
            Value::Scalar { .. } => 0,
            Value::List(items) => items.iter().map(|item| item.size).fold(0, usize::saturating_add),
            Value::Map(entries) => entries.iter().map(|entry| entry.node.size).fold(0, usize::saturating_add),
        };
        Self { line, value, size: size.saturating_add(1) }
    }

    /// Whether nothing stands here.
    pub(super) fn is_nothing(&self) -> bool {
        match &self.value {
            Value::Scalar { text, is_plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// What it is, for errors. What it says is not repeated: it may be a secret.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            _ if self.is_nothing() => "nothing",
            Value::Scalar { .. } => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// A list or a mapping that is being read.
struct Open {
    line: u64,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Rc<Node>>),
    /// With the name that waits for its value.
    Map(Vec<Entry>, Option<(String, u64)>),
}

/// What is read so far.
#[derive(Default)]
struct Reading {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    documents: usize,
}

/// The tree; none if the file is empty. Or the first thing that keeps it from being read.
pub(super) fn parse(text: &str) -> Result<Option<Rc<Node>>, Problem> {
    let mut reading = Reading::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| yaml(error.marker().line() as u64, error.kind().to_string()))?;
        reading.take(event, span.start.line() as u64)?;
    }
    Ok(reading.root)
}

fn yaml(line: u64, message: impl Into<String>) -> Problem {
    Problem::at(line, "yaml", message)
}

impl Reading {
    fn take(&mut self, event: Event<'_>, line: u64) -> Result<(), Problem> {
        let tag = match &event {
            Event::Scalar(.., tag) | Event::SequenceStart(.., tag) | Event::MappingStart(.., tag) => {
                tag.is_some()
            }
            _ => false,
        };
        if tag {
            return Err(yaml(line, "tags such as !!str are not understood; put a text in quotes"));
        }
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(yaml(line, "a second document begins; a file has one"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == ScalarStyle::Plain;
                let node = Node::new(line, Value::Scalar { text: text.into_owned(), is_plain });
                self.add(node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, Items::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => self.begin(line, anchor, Items::Map(Vec::new(), None)),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { line, anchor, items }) => {
                    let value = match items {
                        Items::List(items) => Value::List(items),
                        Items::Map(entries, _) => Value::Map(merged(entries)?),
                    };
                    self.add(Node::new(line, value), anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => self.put(Rc::clone(node), line),
                None => Err(yaml(line, "an alias stands within what it stands for")),
            },
            _ => Ok(()),
        }
    }

    fn begin(&mut self, line: u64, anchor: usize, items: Items) -> Result<(), Problem> {
        if self.open.len() == MOST_DEPTH {
            return Err(yaml(line, format!("lists and mappings are nested more than {MOST_DEPTH} deep")));
        }
        if let Some(Open { items: Items::Map(_, None), .. }) = self.open.last() {
            return Err(yaml(line, "a name is a text, not a list or a mapping"));
        }
        self.open.push(Open { line, anchor, items });
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        let (line, node) = (node.line, Rc::new(node));
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.put(node, line)
    }

    /// Puts a value where it belongs; `line` is where it is mentioned.
    fn put(&mut self, node: Rc<Node>, line: u64) -> Result<(), Problem> {
        if node.size > MOST_VALUES {
            return Err(yaml(line, format!("more than {MOST_VALUES} values, with what aliases repeat")));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.items {
            Items::List(items) => items.push(node),
            Items::Map(entries, name) => match (name.take(), &node.value) {
                (Some((name, line)), _) => entries.push(Entry { name, line, node }),
                (None, Value::Scalar { text, .. }) => *name = Some((text.clone(), line)),
                (None, _) => return Err(yaml(line, "a name is a text, not a list or a mapping")),
            },
        }
        Ok(())
    }
}

/// With what `<<` brings in, as far as it is not there.
fn merged(entries: Vec<Entry>) -> Result<Vec<Entry>, Problem> {
    let (sources, mut all): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.name == "<<");
    if sources.is_empty() {
        return Ok(all);
    }
    let mut names: HashSet<String> = all.iter().map(|entry| entry.name.clone()).collect();
    for entry in sources {
        let mappings = match &entry.node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(&entry.node),
        };
        for mapping in mappings {
            let Value::Map(entries) = &mapping.value else {
                return Err(yaml(entry.line, "<< goes with an alias of a mapping, or a list of these"));
            };
            all.extend(entries.iter().filter(|entry| names.insert(entry.name.clone())).cloned());
        }
    }
    Ok(all)
}
