//! Reading GGUF headers: their contents, and refused files.

use baton_engine::gguf::{DType, Gguf, Value};
use proptest::prelude::*;

use crate::support::writer::Writer;

fn sound() -> Writer {
    let mut writer = Writer::default();
    writer.string("general.architecture", "llama").u32("llama.block_count", 2).f32("eps", 1e-5);
    writer.strings("tokenizer.ggml.tokens", &["a", "bc", ""]);
    writer.f32s("norm.weight", &[1.0; 64]).tensor("w", &[32, 4], 3, &[7; 80]);
    writer
}

#[test]
fn reads_a_written_file() {
    let file = sound().finish();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.u64("llama.block_count").unwrap(), 2);
    assert_eq!(gguf.optional_str("general.architecture").unwrap(), Some("llama"));
    let Some(Value::Array(array)) = gguf.get("tokenizer.ggml.tokens") else { panic!("no array") };
    assert_eq!(array.strings(&file).collect::<Vec<_>>(), [b"a".as_slice(), b"bc", b""]);
    let tensor = gguf.tensor("w").unwrap();
    assert_eq!((tensor.dtype, tensor.columns, tensor.rows, tensor.bytes), (DType::Q4_1, 32, 4, 80));
    let start = usize::try_from(tensor.offset).unwrap();
    assert_eq!(&file[start..start + 80], [7; 80]);
}

/// Every malformed file, with the text of its refusal.
fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let with = |change: &dyn Fn(&mut Writer) -> &mut Writer| {
        let mut writer = sound();
        change(&mut writer);
        writer.finish()
    };
    let entry = |kind: u32, value: &[u8]| with(&|writer| writer.raw_entry("x", kind, value));
    let tensor =
        |shape: &[u64], kind: u32, offset: u64| with(&|writer| writer.raw_tensor("x", shape, kind, offset));
    let array = |kind: u32, count: u64, rest: &[u8]| {
        entry(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), rest].concat())
    };
    let mut big_endian = sound().finish();
    big_endian[4..8].copy_from_slice(&3_u32.to_be_bytes());
    let long = u64::MAX.to_le_bytes();
    vec![
        ("not a GGUF", vec![]),
        ("not a GGUF", b"GGU".to_vec()),
        ("not a GGUF", b"GGML\x03\0\0\0".to_vec()),
        ("within its version", b"GGUF\x03\0".to_vec()),
        ("version 1", sound().finish_with(1, 2, 4)),
        ("version 4", sound().finish_with(4, 2, 4)),
        ("version 50331648", big_endian),
        ("within tensor count", b"GGUF\x03\0\0\0\x01\0".to_vec()),
        ("tensor count of 18446744073709551615", sound().finish_with(3, u64::MAX, 4)),
        ("tensor count of 16385", sound().finish_with(3, 16_385, 4)),
        ("tensor count of 1000", sound().finish_with(3, 1_000, 4)),
        ("entry count of 18446744073709551615", sound().finish_with(3, 2, u64::MAX)),
        ("entry count of 4097", sound().finish_with(3, 2, 4_097)),
        ("entry count of 900", sound().finish_with(3, 2, 900)),
        ("above", sound().finish_with(3, 2, 5)),
        ("above", sound().finish_with(3, 2, 3)),
        ("above", sound().finish_with(3, 3, 4)),
        (
            "a key of 18446744073709551615",
            b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
                .iter()
                .chain(&[255; 8])
                .chain(&[0; 32])
                .copied()
                .collect(),
        ),
        ("a key of 2000 is above 1024", with(&|writer| writer.u32(&"k".repeat(2000), 1))),
        ("twice", with(&|writer| writer.u32("eps", 1))),
        ("twice", with(&|writer| writer.raw_tensor("w", &[32, 1], 3, 512))),
        ("value type 13", entry(13, &[])),
        ("value type 4294967295", entry(u32::MAX, &[])),
        ("boolean of 2", entry(7, &[2])),
        ("a value of 18446744073709551615", entry(8, &long)),
        ("a value of 1000000000", entry(8, &1_000_000_000_u64.to_le_bytes())),
        ("a value is not UTF-8", entry(8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xc3, 0x28])),
        ("length of 18446744073709551615", array(0, u64::MAX, &[])),
        ("length of 18446744073709551615", array(12, u64::MAX, &[])),
        ("length of 2305843009213693953", array(10, (1 << 61) + 1, &[0; 8])),
        ("length of 5000000", array(0, 5_000_000, &vec![0; 6_000_000])),
        ("length of 4000000", array(4, 4_000_000, &[0; 64])),
        ("value type 9", array(9, 1, &[0; 64])),
        ("value type 99", array(99, 1, &[0; 64])),
        ("a string of an array of 18446744073709551615", array(8, 1, &long)),
        ("a string of an array of 2000000", {
            array(8, 1, &[&2_000_000_u64.to_le_bytes()[..], &vec![65; 2_000_000]].concat())
        }),
        ("one to four dimensions", tensor(&[], 0, 512)),
        ("one to four dimensions", tensor(&[1; 5], 0, 512)),
        ("a dimension of zero", tensor(&[32, 0], 0, 512)),
        ("a dimension of zero", tensor(&[0], 0, 512)),
        ("too many rows", tensor(&[32, u64::MAX, u64::MAX], 0, 512)),
        ("too many elements", tensor(&[u64::MAX, 2], 0, 512)),
        ("too many elements", tensor(&[1 << 20, (1 << 20) + 1], 0, 512)),
        ("no whole blocks", tensor(&[33], 2, 512)),
        ("no whole blocks", tensor(&[128], 12, 512)),
        ("type 4,", tensor(&[32], 4, 512)),
        ("type 4294967295", tensor(&[32], u32::MAX, 512)),
        ("off its alignment", tensor(&[1], 0, 33)),
        ("beyond any file", tensor(&[1], 0, u64::MAX - 31)),
        ("beyond the file's end", tensor(&[1], 0, 1 << 40)),
        ("beyond the file's end", tensor(&[1 << 39], 0, 512)),
        ("over another one", tensor(&[1], 0, 0)),
        ("over another one", tensor(&[1], 0, 128)),
        ("over another one", tensor(&[32, 9], 3, 32)),
        ("alignment of 0", with(&|writer| writer.u32("general.alignment", 0))),
        ("alignment of 48", with(&|writer| writer.u32("general.alignment", 48))),
        ("alignment of 1048576", with(&|writer| writer.u32("general.alignment", 1 << 20))),
        ("general.alignment\" is not", with(&|writer| writer.f32("general.alignment", 32.0))),
    ]
}

#[test]
fn refuses_malformed_files() {
    for (index, (says, file)) in malformed().into_iter().enumerate() {
        let error = Gguf::parse(&file).expect_err(says);
        // Wrong counts shift the reader's position: the refusal can be any.
        if says != "above" {
            assert!(error.to_string().contains(says), "file {index}: {error} instead of {says}");
        }
    }
}

#[test]
fn refuses_a_file_cut_anywhere() {
    let file = sound().finish();
    for length in 0..file.len() - 16 {
        // Padding follows the last tensor; all other bytes are needed.
        assert!(Gguf::parse(&file[..length]).is_err(), "{length} of {} bytes", file.len());
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((0..700_usize, any::<u8>()), 1..8)) {
        let mut file = sound().finish();
        for (at, byte) in changes {
            let at = at % file.len();
            file[at] = byte;
        }
        if let Ok(gguf) = Gguf::parse(&file) {
            for tensor in gguf.tensors() {
                prop_assert!(tensor.offset + tensor.bytes <= file.len() as u64);
            }
        }
    }

    #[test]
    fn noise_is_refused(mut noise in prop::collection::vec(any::<u8>(), 0..400)) {
        noise.splice(0..0, *b"GGUF\x03\0\0\0");
        match Gguf::parse(&noise) {
            Ok(gguf) => prop_assert!(gguf.tensors().len() < 16),
            Err(error) => prop_assert!(!error.to_string().contains("not a GGUF file")),
        }
    }
}
