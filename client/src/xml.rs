//! Reading S3's documents.

use quick_xml::{Reader, events::Event};

/// Most elements within each other. S3's documents have five.
const MAX_DEPTH: usize = 32;

/// An element: its name without a prefix, the text directly in it, and its children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) children: Vec<Self>,
}

impl Node {
    /// Reads a document. The error says what is wrong with it.
    pub(crate) fn parse(document: &[u8]) -> Result<Self, String> {
        let document = str::from_utf8(document).map_err(|_| "not UTF-8".to_owned())?;
        let mut reader = Reader::from_str(document);
        let mut open = vec![Self::default()];
        let name =
            |bytes: &[u8]| String::from_utf8_lossy(bytes.rsplit(|&b| b == b':').next().unwrap_or(bytes)).into_owned();
        loop {
            let event = reader.read_event().map_err(|error| error.to_string())?;
            if matches!(event, Event::Start(_)) && open.len() > MAX_DEPTH {
                return Err(format!("more than {MAX_DEPTH} elements within each other"));
            }
            let Some(parent) = open.last_mut() else { return Err("an end tag too many".to_owned()) };
            match event {
                Event::Start(start) => {
                    open.push(Self { name: name(start.name().as_ref().as_ref()), ..Self::default() })
                }
                Event::Empty(start) => {
                    parent.children.push(Self { name: name(start.name().as_ref().as_ref()), ..Self::default() });
                }
                Event::End(_) => {
                    if let Some(node) = open.pop()
                        && let Some(parent) = open.last_mut()
                    {
                        parent.children.push(node);
                    }
                }
                Event::Text(text) => parent.text.push_str(&text.xml10_content()),
                Event::CData(data) => parent.text.push_str(&data.xml10_content()),
                Event::GeneralRef(reference) => {
                    let character = match reference.resolve_char_ref().map_err(|error| error.to_string())? {
                        Some(character) => character,
                        None => match AsRef::<[u8]>::as_ref(&*reference) {
                            b"amp" => '&',
                            b"lt" => '<',
                            b"gt" => '>',
                            b"quot" => '"',
                            b"apos" => '\'',
                            _ => return Err("an unknown entity".to_owned()),
                        },
                    };
                    parent.text.push(character);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        match open.pop() {
            Some(mut root) if open.is_empty() && root.children.len() == 1 => Ok(root.children.remove(0)),
            _ => Err("not one root element".to_owned()),
        }
    }

    /// The children of that name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The text of the first child of that name.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.children.iter().find(|child| child.name == name).map(|child| child.text.as_str())
    }
}

/// `text` as content of an element.
pub(crate) fn escape(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_nodes() {
        let document =
            b"<?xml version=\"1.0\"?>\n<L xmlns=\"x\"><K>a&amp;b &#x41;&#66;</K><E/><K><![CDATA[<c>]]></K></L>";
        let root = Node::parse(document).unwrap();
        assert_eq!(root.name, "L");
        assert_eq!(root.all("K").map(|k| k.text.as_str()).collect::<Vec<_>>(), ["a&b AB", "<c>"]);
        assert_eq!(root.text_of("E"), Some(""));
        assert_eq!(root.text_of("none"), None);
    }

    #[test]
    fn what_is_no_document_is_an_error() {
        let deep = "<a>".repeat(100) + &"</a>".repeat(100);
        for bad in
            [&b""[..], b"text", b"<a>", b"<a></b>", b"<a/><b/>", b"<a>&x;</a>", b"\xff", b"</a>", deep.as_bytes()]
        {
            assert!(Node::parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
