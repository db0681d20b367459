//! Metadata values. Scalars and strings are copied out of the file; arrays stay in place.

use std::ops::Range;

use super::{GgufError, MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES, cursor::Cursor, unsound};

/// The type of a value, with the format's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl ValueKind {
    fn from_id(id: u32) -> Result<Self, GgufError> {
        Ok(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return Err(unsound(format!("value type {id} is not read here"))),
        })
    }

    /// Minimum size in bytes of a value in a file: its whole size, or a string's length field.
    const fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// An array's place in the file. Its length, and the length of each string in it, has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The type of its elements.
    pub kind: ValueKind,
    /// Number of elements.
    pub count: usize,
    /// The elements' bytes, as offsets from the file's start.
    pub range: Range<usize>,
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number of at least zero, of any width.
    Unsigned(u64),
    /// A signed number, of any width.
    Signed(i64),
    /// A floating-point number.
    F32(f32),
    /// A double-precision number.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// Several values of one type.
    Array(Array),
}

impl Value {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        const ARRAY: u32 = 9;
        match cursor.u32("a value's type")? {
            ARRAY => Self::read_array(cursor),
            id => Self::read_scalar(cursor, ValueKind::from_id(id)?),
        }
    }

    fn read_scalar(cursor: &mut Cursor<'_>, kind: ValueKind) -> Result<Self, GgufError> {
        const WHAT: &str = "a value";
        Ok(match kind {
            ValueKind::U8 => Self::Unsigned(u8::from_le_bytes(cursor.array(WHAT)?).into()),
            ValueKind::U16 => Self::Unsigned(u16::from_le_bytes(cursor.array(WHAT)?).into()),
            ValueKind::U32 => Self::Unsigned(cursor.u32(WHAT)?.into()),
            ValueKind::U64 => Self::Unsigned(cursor.u64(WHAT)?),
            ValueKind::I8 => Self::Signed(i8::from_le_bytes(cursor.array(WHAT)?).into()),
            ValueKind::I16 => Self::Signed(i16::from_le_bytes(cursor.array(WHAT)?).into()),
            ValueKind::I32 => Self::Signed(i32::from_le_bytes(cursor.array(WHAT)?).into()),
            ValueKind::I64 => Self::Signed(i64::from_le_bytes(cursor.array(WHAT)?)),
            ValueKind::F32 => Self::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            ValueKind::F64 => Self::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            ValueKind::Bool => match cursor.array(WHAT)? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(unsound(format!("a boolean of {other}"))),
            },
            ValueKind::String => Self::String(cursor.string(WHAT, MAX_STRING_BYTES)?.to_owned()),
        })
    }

    /// Refuses arrays of arrays: no known file has them, and they would let a file make the reader recurse.
    fn read_array(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let kind = ValueKind::from_id(cursor.u32("an array's type")?)?;
        let count = cursor.count("an array's length", MAX_ARRAY_ELEMENTS, kind.least_bytes())?;
        let start = cursor.position();
        if kind == ValueKind::String {
            for _ in 0..count {
                cursor.text("a string of an array", MAX_STRING_BYTES)?;
            }
        } else {
            cursor.take(count as u64 * kind.least_bytes(), "an array")?;
        }
        let place = |at| usize::try_from(at).map_err(|_| unsound("an array is too long"));
        Ok(Self::Array(Array { kind, count, range: place(start)?..place(cursor.position())? }))
    }

    /// The value as a whole number of at least zero.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }
}

impl Array {
    /// The strings of an array of strings, as bytes: a vocabulary's pieces need not be UTF-8. `file` is the
    /// whole file. Ends early if `file` is not the parsed file.
    pub fn strings<'a>(&self, file: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let wanted = if self.kind == ValueKind::String { self.count } else { 0 };
        let mut cursor = Cursor::new(file.get(self.range.clone()).unwrap_or_default());
        (0..wanted).map_while(move |_| cursor.text("a string", MAX_STRING_BYTES).ok())
    }

    /// The numbers of an array of 32-bit floats. `file` is the whole file.
    pub fn floats<'a>(&self, file: &'a [u8]) -> impl Iterator<Item = f32> + use<'a> {
        let range = if self.kind == ValueKind::F32 { self.range.clone() } else { 0..0 };
        let bytes = file.get(range).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }

    /// The numbers of an array of 32-bit integers, signed or not. `file` is the whole file.
    pub fn integers<'a>(&self, file: &'a [u8]) -> impl Iterator<Item = i64> + use<'a> {
        let signed = self.kind == ValueKind::I32;
        let range =
            if matches!(self.kind, ValueKind::I32 | ValueKind::U32) { self.range.clone() } else { 0..0 };
        let bytes = file.get(range).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(move |bytes| {
            if signed { i32::from_le_bytes(*bytes).into() } else { u32::from_le_bytes(*bytes).into() }
        })
    }
}
