//! Reader for the parts of a PTX text that modules need: its version and target, the kernels that it defines, its
//! variables in global and constant memory. Bodies of functions are skipped.

use std::iter::Peekable;
use std::vec::IntoIter;

/// The newest PTX version that the modelled driver accepts: the version of its own release.
pub(crate) const NEWEST: (u32, u32) = (9, 0);
/// The architecture of the modelled device.
pub(crate) const ARCHITECTURE: u32 = 90;

/// The parts of a PTX text.
#[derive(Debug)]
pub(crate) struct Image {
    /// The architecture that it is for: 70 for `sm_70`.
    pub(crate) target: u32,
    /// The names after `.entry`, in order.
    pub(crate) entries: Vec<String>,
    pub(crate) variables: Vec<Variable>,
}

/// A variable of a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// True if it has an initializer, which is not read.
    pub(crate) initialised: bool,
}

/// Why a text was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) why: Why,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It does not begin with `.version`, as PTX does.
    NoVersion,
    /// The unexpected word; `None` at the end of the text.
    Syntax(Option<String>),
    /// The version is newer than [`NEWEST`].
    Version(u32, u32),
    /// The target is newer than [`ARCHITECTURE`].
    Target(String),
}

/// Formats the error as the driver's log does.
impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX text, line {}; error : ", self.line)?;
        match &self.why {
            Why::NoVersion => write!(f, ".version is missing, with which PTX begins"),
            Why::Syntax(Some(word)) => write!(f, "syntax, near '{word}'"),
            Why::Syntax(None) => write!(f, "syntax, at the text's end"),
            Why::Version(major, minor) => {
                write!(
                    f,
                    ".version {major}.{minor} is newer than {}.{}, the newest taken",
                    NEWEST.0, NEWEST.1
                )
            }
            Why::Target(target) => write!(f, ".target {target} is newer than the device's sm_{ARCHITECTURE}"),
        }
    }
}

/// Reads a text.
pub(crate) fn read(text: &str) -> Result<Image, Broken> {
    Reader { words: words(text).into_iter().peekable(), line: 1 }.image()
}

/// A word, a string, or a sign, with its line.
type Word = (usize, String);

/// The text's words without comments.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut left = text;
    let mut line = 1;
    while let Some(first) = left.chars().next() {
        let end_after =
            |mark: &str, skip: usize| left[skip..].find(mark).map_or(left.len(), |at| skip + at + mark.len());
        let in_word = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
        let len = match first {
            '/' if left.starts_with("//") => left.find('\n').unwrap_or(left.len()),
            '/' if left.starts_with("/*") => end_after("*/", 2),
            '"' => end_after("\"", 1),
            c if in_word(c) => left.find(|c| !in_word(c)).unwrap_or(left.len()),
            c => c.len_utf8(),
        };
        let (word, rest) = left.split_at(len);
        if !first.is_whitespace() && !word.starts_with("//") && !word.starts_with("/*") {
            words.push((line, word.to_owned()));
        }
        line += word.matches('\n').count();
        left = rest;
    }
    words
}

struct Reader {
    words: Peekable<IntoIter<Word>>,
    /// Line of the last word.
    line: usize,
}

impl Reader {
    fn next(&mut self) -> Option<String> {
        let (line, word) = self.words.next()?;
        self.line = line;
        Some(word)
    }

    fn peek(&mut self) -> &str {
        self.words.peek().map_or("", |(_, word)| word)
    }

    fn broken(&self, why: Why) -> Broken {
        Broken { line: self.line, why }
    }

    /// Returns the next word if `takes` accepts it.
    fn expect(&mut self, takes: impl FnOnce(&str) -> bool) -> Result<String, Broken> {
        match self.next() {
            Some(word) if takes(&word) => Ok(word),
            found => Err(self.broken(Why::Syntax(found))),
        }
    }

    fn sign(&mut self, sign: &str) -> Result<(), Broken> {
        self.expect(|word| word == sign).map(drop)
    }

    fn name(&mut self) -> Result<String, Broken> {
        self.expect(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)))
    }

    fn number(&mut self) -> Result<u64, Broken> {
        let word = self.expect(|word| word.parse::<u64>().is_ok())?;
        word.parse().map_err(|_| self.broken(Why::Syntax(Some(word))))
    }

    /// Skips past the sign that closes the current bracket or statement, together with nested brackets.
    fn skip_to(&mut self, end: &str) -> Result<(), Broken> {
        loop {
            match self.next().as_deref() {
                Some(word) if word == end => return Ok(()),
                Some("{") => self.skip_to("}")?,
                Some("(") => self.skip_to(")")?,
                Some(word @ ("}" | ")")) => return Err(self.broken(Why::Syntax(Some(word.to_owned())))),
                Some(_) => {}
                None => return Err(self.broken(Why::Syntax(None))),
            }
        }
    }

    fn image(mut self) -> Result<Image, Broken> {
        let target = self.header()?;
        let mut image = Image { target, entries: Vec::new(), variables: Vec::new() };
        while let Some(word) = self.next() {
            match word.as_str() {
                ".address_size" => drop(self.number()?),
                ".visible" | ".extern" | ".weak" | ".common" => {}
                ".entry" => {
                    let name = self.name()?;
                    self.body()?;
                    image.entries.push(name);
                }
                ".func" => self.body()?,
                ".global" | ".const" => image.variables.push(self.variable()?),
                ".shared" => drop(self.variable()?),
                ".pragma" | ".alias" => self.skip_to(";")?,
                ".file" => {
                    self.number()?;
                    self.expect(|word| word.starts_with('"'))?;
                }
                ".section" => {
                    self.name_of_section()?;
                    self.sign("{")?;
                    self.skip_to("}")?;
                }
                _ => return Err(self.broken(Why::Syntax(Some(word)))),
            }
        }
        Ok(image)
    }

    fn name_of_section(&mut self) -> Result<String, Broken> {
        self.expect(|word| word.starts_with('.'))
    }

    /// Reads `.version`, then `.target`, and returns the target's number.
    fn header(&mut self) -> Result<u32, Broken> {
        self.sign(".version").map_err(|broken| Broken { why: Why::NoVersion, ..broken })?;
        let numbers = |word: &str| {
            let (major, minor) = word.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let word = self.expect(|word| numbers(word).is_some())?;
        let version = numbers(&word).unwrap_or_default();
        if version > NEWEST {
            return Err(self.broken(Why::Version(version.0, version.1)));
        }
        self.sign(".target")?;
        let target = self.name()?;
        let digits = |target: &str| -> Option<u32> {
            target.strip_prefix("sm_")?.trim_end_matches(['a', 'f']).parse().ok()
        };
        let architecture = match digits(&target) {
            Some(architecture) if architecture <= ARCHITECTURE => architecture,
            Some(_) => return Err(self.broken(Why::Target(target))),
            None => return Err(self.broken(Why::Syntax(Some(target)))),
        };
        while self.peek() == "," {
            self.next();
            self.name()?;
        }
        Ok(architecture)
    }

    /// A function's rest: parameters and directives, then its body, or nothing for a declaration.
    fn body(&mut self) -> Result<(), Broken> {
        loop {
            match self.next().as_deref() {
                Some("{") => return self.skip_to("}"),
                Some(";") => return Ok(()),
                Some("(") => self.skip_to(")")?,
                Some("}" | ")" | ".entry" | ".func") | None => return Err(self.broken(Why::Syntax(None))),
                Some(_) => {}
            }
        }
    }

    /// A variable after its space: `.align 4 .u32 name[2][3] = { … };`.
    fn variable(&mut self) -> Result<Variable, Broken> {
        let mut bytes = 0;
        let mut lanes = 1;
        let name = loop {
            let word = self
                .expect(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || "._$%".contains(c)))?;
            match word.as_str() {
                ".align" => drop(self.number()?),
                ".attribute" | ".managed" => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                kind if kind.starts_with('.') => {
                    bytes = bytes_of(kind).ok_or_else(|| self.broken(Why::Syntax(Some(word.clone()))))?;
                }
                _ => break word,
            }
        };
        let mut elements: u64 = 1;
        while self.peek() == "[" {
            self.next();
            // An array without a length is declared elsewhere.
            let length = if self.peek() == "]" { 0 } else { self.number()? };
            elements = elements.saturating_mul(length);
            self.sign("]")?;
        }
        let initialised = self.peek() == "=";
        if initialised { self.skip_to(";") } else { self.sign(";") }?;
        Ok(Variable { name, bytes: elements.saturating_mul(bytes * lanes), initialised })
    }
}

/// The size of a type: `.u32` is 4.
fn bytes_of(kind: &str) -> Option<u64> {
    let bits: u64 = kind.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok()?;
    [8, 16, 32, 64, 128].contains(&bits).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// a comment, and .entry in it
.version 7.0
.target sm_70, texmode_independent
.address_size 64
.extern .shared .align 16 .b8 room[];
.visible .global .align 8 .v2 .u32 table[2][3];
.const .f64 one = 0d3FF0000000000000;
.func (.reg .u32 out) helper(.reg .u32 in) { { ret; } }
.visible .entry first(.param .u64 a, .param .align 4 .b8 b[12])
.maxntid 256, 1, 1
{ /* } */ ret; }
.entry second() { ret; }
";

    #[test]
    fn kernels_and_variables_are_found() {
        let image = read(TEXT).unwrap();
        assert_eq!((image.target, image.entries), (70, vec!["first".to_owned(), "second".to_owned()]));
        let variable =
            |name: &str, bytes, initialised| Variable { name: name.to_owned(), bytes, initialised };
        assert_eq!(image.variables, [variable("table", 48, false), variable("one", 8, true)]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let broken = |text: String| read(&text).unwrap_err();
        let syntax = |line, word: &str| Broken { line, why: Why::Syntax(Some(word.to_owned())) };
        assert_eq!(broken(TEXT.replace(".entry first", ".entri first")), syntax(9, ".entri"));
        assert_eq!(broken(TEXT.replace("[3];", "[3] 5")), syntax(6, "5"));
        for (none, line) in
            [("what is this".to_owned(), 1), (String::new(), 1), (TEXT.replace(".version 7.0", ""), 3)]
        {
            assert_eq!(broken(none), Broken { line, why: Why::NoVersion });
        }
        assert_eq!(broken(TEXT.replace("7.0", "99.0")), Broken { line: 2, why: Why::Version(99, 0) });
        let newer = broken(TEXT.replace("sm_70", "sm_100a"));
        assert_eq!(newer, Broken { line: 3, why: Why::Target("sm_100a".to_owned()) });
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reader(cut in 0..TEXT.len(), insert in ".{0,8}") {
            let _ = read(&TEXT[..cut]);
            let _ = read(&format!("{}{insert}{}", &TEXT[..cut], &TEXT[cut..]));
        }
    }
}
