//! Pickles are read as data: what Python would execute is refused, what is damaged is an error,
//! and nothing panics.

use std::path::PathBuf;

use mast3r_slam::network::pickle::{Pickle, PickleError, Value};
use proptest::prelude::*;

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Protocol 2: `module.name(text)`.
fn call(module: &str, name: &str, text: &str) -> Vec<u8> {
    let mut p = b"\x80\x02c".to_vec();
    p.extend_from_slice(format!("{module}\n{name}\n").as_bytes());
    p.push(b'X');
    p.extend_from_slice(&(text.len() as u32).to_le_bytes());
    p.extend_from_slice(text.as_bytes());
    p.extend_from_slice(b"\x85R.");
    p
}

#[test]
fn executable_globals_are_refused_by_name() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("nt", "system"),
        ("subprocess", "Popen"),
        ("sys", "exit"),
        ("builtins", "eval"),
        ("builtins", "exec"),
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("__builtin__", "eval"),
        ("importlib", "import_module"),
        ("runpy", "run_path"),
        ("functools", "partial"),
        ("torch.hub", "load"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("numpy.testing._private.utils", "runstring"),
        ("some.unknown.module", "function"),
    ] {
        let error = Pickle::parse(&call(module, name, "echo")).expect_err(module);
        assert!(
            matches!(&error, PickleError::Refused { module: m, name: n, .. } if m == module && n == name),
            "{module}.{name}: {error}"
        );
        assert!(error.to_string().contains(&format!("{module}.{name}")));
    }
}

#[test]
fn dangerous_globals_are_refused_even_when_only_named_or_instantiated() {
    for tail in [&b"."[..], b")\x81.", b")\x81}b."] {
        let mut p = b"\x80\x02cposix\nsystem\n".to_vec();
        p.extend_from_slice(tail);
        assert!(matches!(
            Pickle::parse(&p),
            Err(PickleError::Refused { .. })
        ));
    }
    // Protocol 4, through an attribute of a harmless module.
    let p = b"\x80\x04\x8c\x05numpy\x8c\x0dcompat.os.sys\x93.";
    assert!(matches!(Pickle::parse(p), Err(PickleError::Refused { .. })));
}

#[test]
fn unknown_classes_are_inert_objects() {
    // argparse.Namespace and an unknown class, both by NEWOBJ and BUILD with {'a': 1}.
    for class in ["argparse\nNamespace", "my.training\nSettings"] {
        let mut p = b"\x80\x02c".to_vec();
        p.extend_from_slice(class.as_bytes());
        p.extend_from_slice(b"\n)\x81}X\x01\x00\x00\x00aK\x01sb.");
        let pickle = Pickle::parse(&p).unwrap();
        let object = pickle.object(pickle.root()).unwrap();
        assert_eq!(format!("{}\n{}", object.module, object.name), class);
        let a = pickle.lookup(object.state.unwrap(), "a").unwrap();
        assert_eq!(pickle.get(a), &Value::Int(1));
    }
}

#[test]
fn values_of_all_kinds() {
    // pickle.dumps([None, True, False, -5, 70000, 2**40, -(2**80), 1.5, 'é', b'\x00\xff',
    //               bytearray(b'ab'), {1: 2}, (1, 2, 3, 4), {7}, frozenset({8})], protocol=5)
    let p = b"\x80\x05\x95\x6a\0\0\0\0\0\0\0]\x94(N\x88\x89J\xfb\xff\xff\xffJp\x11\x01\0\
        \x8a\x06\0\0\0\0\0\x01\x8a\x0b\0\0\0\0\0\0\0\0\0\0\xffG\x3f\xf8\0\0\0\0\0\0\
        \x8c\x02\xc3\xa9\x94C\x02\0\xff\x94\x96\x02\0\0\0\0\0\0\0ab\x94}\x94K\x01K\x02s\
        (K\x01K\x02K\x03K\x04t\x94\x8f\x94(K\x07\x90(K\x08\x91\x94e.";
    let p = {
        // The frame's length covers everything after it.
        let mut p = p.to_vec();
        let length = (p.len() - 11) as u64;
        p[3..11].copy_from_slice(&length.to_le_bytes());
        p
    };
    let pickle = Pickle::parse(&p).unwrap();
    let items = pickle.items(pickle.root()).unwrap();
    let values: Vec<_> = items.iter().map(|&i| pickle.get(i)).collect();
    assert_eq!(values[0], &Value::None);
    assert_eq!(values[1], &Value::Bool(true));
    assert_eq!(values[2], &Value::Bool(false));
    assert_eq!(values[3], &Value::Int(-5));
    assert_eq!(values[4], &Value::Int(70_000));
    assert_eq!(values[5], &Value::Int(1 << 40));
    assert!(matches!(values[6], Value::BigInt(b) if b.len() == 11));
    assert_eq!(values[7], &Value::Float(1.5));
    assert_eq!(values[8], &Value::Str("é"));
    assert_eq!(values[9], &Value::Bytes(&[0, 0xff]));
    assert_eq!(values[10], &Value::Bytes(b"ab"));
    assert!(matches!(values[11], Value::Dict(entries) if entries.len() == 1));
    assert!(matches!(values[12], Value::Tuple(items) if items.len() == 4));
    assert!(matches!(values[13], Value::Set(items) if items.len() == 1));
    assert!(matches!(values[14], Value::Set(items) if items.len() == 1));
}

#[test]
fn cycles_are_harmless() {
    // l = []; l.append(l)
    let pickle = Pickle::parse(b"\x80\x02]q\x00h\x00a.").unwrap();
    assert_eq!(pickle.items(pickle.root()), Some(&[pickle.root()][..]));
}

#[test]
fn declared_lengths_are_checked_before_anything_is_allocated() {
    for (p, needed) in [
        (
            &b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
            u64::MAX >> 1,
        ),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", u64::MAX),
        (b"\x80\x05\x95\0\0\0\0\x01\0\0\0", 1 << 32),
        (b"\x80\x02X\xff\xff\xff\x7fab", (1 << 31) - 1),
        (b"\x80\x02\x8b\xff\xff\xff\xff", (1 << 32) - 1),
    ] {
        let error = Pickle::parse(p).unwrap_err();
        assert!(
            matches!(error, PickleError::Truncated { needed: n, .. } if n == needed),
            "{error}"
        );
    }
    // A memo index of 4 billion takes one entry.
    assert!(Pickle::parse(b"\x80\x02Nr\xff\xff\xff\xff.").is_ok());
}

#[test]
fn limits_on_nesting_and_on_values() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(std::iter::repeat_n(b'(', 1 << 20));
    assert!(matches!(
        Pickle::parse(&deep),
        Err(PickleError::TooLarge {
            what: "open marks",
            ..
        })
    ));
    let mut many = b"\x80\x02".to_vec();
    many.extend(std::iter::repeat_n(b'}', (1 << 22) + 1));
    assert!(matches!(
        Pickle::parse(&many),
        Err(PickleError::TooLarge { what: "values", .. })
    ));
    // Nesting without marks: a million tuples within each other are read and dropped.
    let mut nested = b"\x80\x02)".to_vec();
    nested.extend(std::iter::repeat_n(0x85, 1 << 20));
    nested.push(b'.');
    assert!(Pickle::parse(&nested).is_ok());
}

#[test]
fn malformed_pickles_say_where_and_what() {
    for (p, words) in [
        (&b"plain text"[..], "first byte 0x70"),
        (b"\x80\x01N.", "protocol 1"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\x80\x02.", "a value on the stack"),
        (b"\x80\x02t.", "a mark"),
        (b"\x80\x02h\x05.", "number 5, which has not"),
        (b"\x80\x02}(NuN.", "a key without a value"),
        (b"\x80\x02NNa.", "a list or set"),
        (b"\x80\x02NNR.", "a class or function"),
        (b"\x80\x02X\x01\0\0\0\xff.", "UTF-8"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x02(i", "opcode 0x69"),
        (b"\x80\x02N", "truncated pickle"),
    ] {
        let message = Pickle::parse(p).unwrap_err().to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}

#[test]
fn every_truncation_of_real_files_is_an_error() {
    for name in [
        "retrieval/tiny_codebook_numpy1_protocol2.pkl",
        "retrieval/tiny_codebook_numpy1_protocol4.pkl",
        "retrieval/tiny_codebook_numpy2_protocol5.pkl",
    ] {
        let bytes = data(name);
        assert!(Pickle::parse(&bytes).is_ok());
        for length in 0..bytes.len() {
            assert!(
                Pickle::parse(&bytes[..length]).is_err(),
                "{name} cut to {length}"
            );
        }
    }
}

/// Bytes that are mostly opcodes, so that the machine gets somewhere.
fn opcode_soup() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(
        b"(012NJKMGXTUBC]})ltdaesuqrhjcRbQ\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8f\x90\x91\x92\x93\x94\x95\x96.\x00\x01\x02"
            .to_vec(),
    );
    prop::collection::vec(opcode, 0..200)
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Pickle::parse(&bytes);
    }

    #[test]
    fn random_opcodes_never_panic(soup in opcode_soup()) {
        let mut bytes = b"\x80\x04".to_vec();
        bytes.extend(soup);
        if let Ok(pickle) = Pickle::parse(&bytes) {
            let root = pickle.root();
            let _ = (pickle.describe(root), pickle.lookup(root, "a"), pickle.bytes(root));
        }
    }

    #[test]
    fn damaged_files_never_panic(at in 0usize..2000, byte in any::<u8>()) {
        let mut bytes = data("retrieval/tiny_codebook_numpy1_protocol2.pkl");
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = Pickle::parse(&bytes);
    }
}
