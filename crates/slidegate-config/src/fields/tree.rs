//! A YAML file as a tree of values with their lines.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use crate::problem::Problem;

/// Maximum number of values, with the values behind an alias counted at each use. A small file could otherwise expand
/// exponentially.
const MAX_VALUES: usize = 500_000;
/// Maximum nesting: 31 levels of descriptors in a file of envoyproxy/ratelimit, and far more than our own file has.
const MAX_DEPTH: usize = 64;

/// A value and the line where it begins. A clone shares the nested values.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
    /// Number of values in it, itself included.
    size: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A text. Only one without quotes can be a number, a boolean or null.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Rc<Node>>),
    Map(Vec<Entry>),
}

/// A name in a mapping, and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Line of the name.
    pub(crate) line: u64,
    pub(crate) node: Rc<Node>,
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

    /// Returns whether the value is null.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, is_plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// Describes the type of the value for messages. They do not contain the value, which may be a secret.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            _ if self.is_null() => "nothing",
            Value::Scalar { .. } => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// A list or a mapping that has begun.
struct OpenContainer {
    line: u64,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Rc<Node>>),
    /// Complete entries, and the name whose value comes next.
    Map(Vec<Entry>, Option<(String, u64)>),
}

/// Tags that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tags {
    /// All tags are rejected.
    Rejected,
    /// The tags of YAML's core schema, such as `!!str`, are accepted.
    Core,
}

/// Effect of a tag on a scalar. Lists and mappings are the same without their tags.
#[derive(Clone, Copy)]
enum TagKind {
    /// The scalar is a text, like one in quotes.
    Text,
    Null,
    /// The scalar is read as one without quotes.
    Other,
}

/// Builds the tree from the events of the parser.
struct TreeBuilder {
    tags: Tags,
    open: Vec<OpenContainer>,
    anchors: HashMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    documents: usize,
}

/// Parses a file. Returns `None` if it is empty, or the first syntax error.
pub(crate) fn parse(text: &str, tags: Tags) -> Result<Option<Rc<Node>>, Problem> {
    let mut builder =
        TreeBuilder { tags, open: Vec::new(), anchors: HashMap::new(), root: None, documents: 0 };
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| yaml(error.marker().line() as u64, error.kind().to_string()))?;
        builder.handle(event, span.start.line() as u64)?;
    }
    Ok(builder.root)
}

fn yaml(line: u64, message: impl Into<String>) -> Problem {
    Problem::at(line, "yaml", message)
}

impl TreeBuilder {
    fn handle(&mut self, event: Event<'_>, line: u64) -> Result<(), Problem> {
        let tag = match &event {
            Event::Scalar(.., tag) | Event::SequenceStart(.., tag) | Event::MappingStart(.., tag) => {
                tag.as_deref().map(|tag| self.kind_of(tag, line)).transpose()?
            }
            _ => None,
        };
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(yaml(line, "a second document begins; a file has one document"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == ScalarStyle::Plain;
                let (text, is_plain) = match tag {
                    None => (text.into_owned(), is_plain),
                    Some(TagKind::Text) => (text.into_owned(), false),
                    Some(TagKind::Null) => (String::new(), true),
                    Some(TagKind::Other) => (text.into_owned(), true),
                };
                self.add(Node::new(line, Value::Scalar { text, is_plain }), anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, Items::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => self.begin(line, anchor, Items::Map(Vec::new(), None)),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenContainer { line, anchor, items }) => {
                    let value = match items {
                        Items::List(items) => Value::List(items),
                        Items::Map(entries, _) => Value::Map(merged(entries)?),
                    };
                    self.add(Node::new(line, value), anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => self.place(Rc::clone(node), line),
                None => Err(yaml(line, "an alias refers to a value that contains it")),
            },
            _ => Ok(()),
        }
    }

    /// Returns the effect of a tag, or the problem with it.
    fn kind_of(&self, tag: &Tag, line: u64) -> Result<TagKind, Problem> {
        if self.tags == Tags::Rejected {
            return Err(yaml(line, "tags such as !!str are not supported; put a text in quotes"));
        }
        match tag.core_suffix() {
            Some("str") => Ok(TagKind::Text),
            Some("null") => Ok(TagKind::Null),
            Some(_) => Ok(TagKind::Other),
            None if tag.parts() == ("", "!") => Ok(TagKind::Text),
            None => Err(yaml(
                line,
                format!(
                    "the tag {} is not supported; only !!str and the other tags of YAML's core schema are",
                    tag.original()
                ),
            )),
        }
    }

    fn begin(&mut self, line: u64, anchor: usize, items: Items) -> Result<(), Problem> {
        if self.open.len() == MAX_DEPTH {
            return Err(yaml(line, format!("lists and mappings are nested more than {MAX_DEPTH} deep")));
        }
        if let Some(OpenContainer { items: Items::Map(_, None), .. }) = self.open.last() {
            return Err(yaml(line, "a name is a text, not a list or a mapping"));
        }
        self.open.push(OpenContainer { line, anchor, items });
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        let (line, node) = (node.line, Rc::new(node));
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node, line)
    }

    /// Adds a value to the innermost open container; `line` is the line of the value, or of the alias that repeats it.
    fn place(&mut self, node: Rc<Node>, line: u64) -> Result<(), Problem> {
        if node.size > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values, counting those that aliases repeat");
            return Err(yaml(line, message));
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

/// Resolves merge keys (`<<`): adds the entries of their mappings whose names are absent.
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
                return Err(yaml(entry.line, "<< accepts an alias of a mapping, or a list of such aliases"));
            };
            all.extend(entries.iter().filter(|entry| names.insert(entry.name.clone())).cloned());
        }
    }
    Ok(all)
}
