//! Rust source as tokens, without comments, literals and test code.

/// An identifier or a punctuation mark; `::` is one token, every other mark is one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// Counted from 1.
    pub line: usize,
}

/// The tokens of `source` outside of items that only tests compile (`#[cfg(test)]`, `#[test]`).
pub fn production(source: &str) -> Vec<Token> {
    without_tests(&tokens(source))
}

/// Index after the bracket that closes the one at `open`.
pub fn after_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |k: usize| chars.get(k).copied().unwrap_or('\0');
    let mut out = Vec::new();
    let (mut k, mut line) = (0, 1);
    while k < chars.len() {
        let start = k;
        let first_line = line;
        match at(k) {
            '/' if at(k + 1) == '/' => k = until(&chars, k, '\n'),
            '/' if at(k + 1) == '*' => k = after_block_comment(&chars, k),
            '"' => k = after_string(&chars, k),
            'r' | 'b' | 'c' if literal_prefix(&chars, k).is_some() => {
                k = literal_prefix(&chars, k).unwrap_or(k + 1);
            }
            '\'' if at(k + 1) == '\\' || at(k + 2) == '\'' => k = after_char(&chars, k),
            ':' if at(k + 1) == ':' => {
                k += 2;
                out.push(token("::", first_line));
            }
            c if c.is_alphanumeric() || c == '_' => {
                while at(k).is_alphanumeric() || at(k) == '_' {
                    k += 1;
                }
                let text: String = chars[start..k].iter().collect();
                // `r#type` is the identifier `type`.
                if !(text == "r" && at(k) == '#') {
                    out.push(token(&text, first_line));
                }
            }
            c if c.is_whitespace() => k += 1,
            c => {
                k += 1;
                out.push(token(&c.to_string(), first_line));
            }
        }
        line += chars[start..k.min(chars.len())]
            .iter()
            .filter(|c| **c == '\n')
            .count();
    }
    out
}

fn token(text: &str, line: usize) -> Token {
    Token {
        text: text.to_owned(),
        line,
    }
}

fn until(chars: &[char], from: usize, end: char) -> usize {
    let rest = chars[from..].iter().position(|c| *c == end);
    rest.map_or(chars.len(), |n| from + n)
}

fn after_block_comment(chars: &[char], from: usize) -> usize {
    let (mut k, mut depth) = (from, 0);
    while k < chars.len() {
        match (chars[k], chars.get(k + 1)) {
            ('/', Some('*')) => (k, depth) = (k + 2, depth + 1),
            ('*', Some('/')) if depth == 1 => return k + 2,
            ('*', Some('/')) => (k, depth) = (k + 2, depth - 1),
            _ => k += 1,
        }
    }
    k
}

fn after_string(chars: &[char], quote: usize) -> usize {
    let mut k = quote + 1;
    while k < chars.len() && chars[k] != '"' {
        k += if chars[k] == '\\' { 2 } else { 1 };
    }
    k + 1
}

fn after_char(chars: &[char], quote: usize) -> usize {
    let body = if chars.get(quote + 1) == Some(&'\\') {
        3
    } else {
        2
    };
    until(chars, quote + body, '\'') + 1
}

/// Index after a literal with a prefix (`r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `b'…'`), if one begins here.
fn literal_prefix(chars: &[char], from: usize) -> Option<usize> {
    let letters = chars[from..]
        .iter()
        .take_while(|c| "rbc".contains(**c))
        .count();
    let raw = chars[from..from + letters].contains(&'r');
    let hashes = chars[from + letters..]
        .iter()
        .take_while(|c| **c == '#')
        .count();
    let quote = from + letters + hashes;
    match chars.get(quote)? {
        '"' if raw => {
            let end: Vec<char> = std::iter::once('"')
                .chain(std::iter::repeat_n('#', hashes))
                .collect();
            let body = quote + 1;
            let found = chars.get(body..)?.windows(end.len()).position(|w| w == end);
            Some(found.map_or(chars.len(), |n| body + n + end.len()))
        }
        '"' if hashes == 0 => Some(after_string(chars, quote)),
        '\'' if hashes == 0 && letters == 1 && chars[from] == 'b' => Some(after_char(chars, quote)),
        _ => None,
    }
}

fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut out = Vec::new();
    let mut k = 0;
    while k < tokens.len() {
        if !is_attribute(tokens, k) {
            out.push(tokens[k].clone());
            k += 1;
            continue;
        }
        let first = k;
        let mut test = false;
        while is_attribute(tokens, k) {
            let end = after_group(tokens, k + 1);
            test |= is_test_only(&tokens[k + 2..end - 1]);
            k = end;
        }
        if test {
            k = after_item(tokens, k);
        } else {
            out.extend_from_slice(&tokens[first..k]);
        }
    }
    out
}

fn is_attribute(tokens: &[Token], at: usize) -> bool {
    let text = |k: usize| tokens.get(k).map(|t| t.text.as_str());
    text(at) == Some("#") && text(at + 1) == Some("[")
}

/// Whether an attribute's content leaves the item to tests: `test`, or a `cfg` that asks for it.
fn is_test_only(content: &[Token]) -> bool {
    let text = |k: usize| content.get(k).map_or("", |t| t.text.as_str());
    match text(0) {
        "test" => true,
        "cfg" => (1..content.len()).any(|k| {
            text(k) == "test" && !(text(k - 1) == "(" && text(k.saturating_sub(2)) == "not")
        }),
        _ => false,
    }
}

/// Index after the item (or field, or statement) that begins at `start`.
fn after_item(tokens: &[Token], start: usize) -> usize {
    const ENDS_WITH_SEMICOLON: [&str; 6] = ["use", "const", "static", "type", "let", "extern"];
    const MAY_END_WITH_BRACE: [&str; 9] = [
        "mod", "fn", "struct", "enum", "impl", "trait", "unsafe", "union", "async",
    ];
    let mut k = start;
    while tokens.get(k).is_some_and(|t| t.text == "pub") {
        k += 1;
        if tokens.get(k).is_some_and(|t| t.text == "(") {
            k = after_group(tokens, k);
        }
    }
    let keyword = tokens.get(k).map_or("", |t| t.text.as_str());
    // `const fn` is a function.
    let function = tokens.get(k + 1).is_some_and(|t| t.text == "fn");
    let semicolon = ENDS_WITH_SEMICOLON.contains(&keyword) && !function;
    let brace = MAY_END_WITH_BRACE.contains(&keyword) || function;
    while let Some(token) = tokens.get(k) {
        match token.text.as_str() {
            ";" => return k + 1,
            "{" if brace => return after_group(tokens, k),
            "(" | "[" | "{" => k = after_group(tokens, k),
            ")" | "]" | "}" => return k,
            "," if !semicolon && !brace => return k + 1,
            _ => k += 1,
        }
    }
    k
}

#[cfg(test)]
mod tests {
    use super::production;

    fn text(source: &str) -> String {
        let words: Vec<String> = production(source).into_iter().map(|t| t.text).collect();
        words.join(" ")
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let source = "a // crate::b\n/* crate::c /* d */ */ \"crate::e \\\" f\" r#\"crate::\"g\"# b'x' '\\'' 'h' &'i j r#type";
        assert_eq!(text(source), "a & ' i j # type");
        let lines: Vec<usize> = production("a\n/*\n*/ b \"\n\" c")
            .iter()
            .map(|t| t.line)
            .collect();
        assert_eq!(lines, [1, 3, 4]);
    }

    #[test]
    fn test_code_is_left_out() {
        assert_eq!(text("#[cfg(test)] mod t { use a; } b"), "b");
        assert_eq!(text("#[cfg(all(test, unix))] use a::{b, c}; d"), "d");
        assert_eq!(
            text("#[cfg(test)] pub(crate) const fn a() -> [u8; 2] { b } c"),
            "c"
        );
        assert_eq!(text("S { #[cfg(test)] a: (B, C), d }"), "S { d }");
        assert_eq!(text("#[test] fn a() {} b"), "b");
        assert_eq!(text("#[cfg(not(test))] a"), "# [ cfg ( not ( test ) ) ] a");
    }
}
