//! A patch in its columns: header, identifier and tags before the data.

use std::collections::BTreeMap;

use super::{
    MAX_TAGS_BYTES, PatchEntry, QuiltError, QuiltPatch, VERSION,
    bcs::{self, BcsReader},
    layout::Layout,
    refused,
};

/// Version, length of the rest, and mask.
const HEADER_BYTES: usize = 6;
/// Mask bit for tags after the identifier.
const MASK_TAGS: u8 = 1;
const TAGS_TOO_LARGE: &str = "its tags are larger than 65,535 bytes";

/// The bytes before a patch's data. The identifier must have been checked.
pub(super) fn head(patch: &QuiltPatch<'_>) -> Result<Vec<u8>, &'static str> {
    let mut rest = Vec::new();
    let mut field = Vec::new();
    bcs::put_text(&mut field, patch.identifier);
    rest.extend(u16::try_from(field.len()).expect("identifiers are bounded").to_le_bytes());
    rest.append(&mut field);
    if !patch.tags.is_empty() {
        // Each tag takes at least two bytes: too many are refused before they are all encoded.
        let bytes: usize = patch.tags.iter().map(|(key, value)| key.len() + value.len() + 2).sum();
        if bytes > MAX_TAGS_BYTES {
            return Err(TAGS_TOO_LARGE);
        }
        bcs::put_map(&mut field, &patch.tags);
        rest.extend(u16::try_from(field.len()).map_err(|_| TAGS_TOO_LARGE)?.to_le_bytes());
        rest.append(&mut field);
    }
    let length = u32::try_from(rest.len() + patch.data.len())
        .map_err(|_| "it does not fit the 32 bits of its length")?;
    let mut head = Vec::with_capacity(HEADER_BYTES + rest.len());
    head.push(VERSION);
    head.extend(length.to_le_bytes());
    head.push(if patch.tags.is_empty() { 0 } else { MASK_TAGS });
    head.append(&mut rest);
    Ok(head)
}

/// Reads the data of an entry's patch, after checking that the bytes before it match the entry.
pub(super) fn read(layout: &Layout, quilt: &[u8], entry: &PatchEntry) -> Result<Vec<u8>, QuiltError> {
    let PatchEntry { start, end, .. } = *entry;
    let malformed = |what| refused(format!("the patch in columns {start} to {end} is malformed: {what}"));
    let columns = Columns { layout, quilt, start: usize::from(start), end: usize::from(end) };
    let header = columns.read(0, HEADER_BYTES).map_err(malformed)?;
    let (length, mask) = parse_header(&header).map_err(malformed)?;
    // 64-bit sums: the patch itself claims the length.
    let whole = usize::try_from(HEADER_BYTES as u64 + u64::from(length))
        .map_err(|_| malformed("its length does not match its columns"))?;
    if layout.columns_for(whole) != columns.end - columns.start {
        return Err(malformed("its length does not match its columns"));
    }
    let mut at = HEADER_BYTES;
    let identifier = columns.field(&mut at, whole).map_err(malformed)?;
    let identifier = parse_identifier(&identifier).map_err(malformed)?;
    let tags = if mask & MASK_TAGS == 0 {
        BTreeMap::new()
    } else {
        let bytes = columns.field(&mut at, whole).map_err(malformed)?;
        parse_tags(&bytes).map_err(malformed)?
    };
    if identifier != entry.identifier || tags != entry.tags {
        return Err(malformed("it is not the one that the index names"));
    }
    columns.read(at, whole - at).map_err(malformed)
}

/// The columns of one patch.
struct Columns<'a> {
    layout: &'a Layout,
    quilt: &'a [u8],
    start: usize,
    end: usize,
}

impl Columns<'_> {
    fn read(&self, skip: usize, length: usize) -> Result<Vec<u8>, &'static str> {
        self.layout
            .read(self.quilt, self.start, self.end, skip, length)
            .ok_or("it does not fit in its columns")
    }

    /// A field: a 16-bit length and that many bytes, which must end at or before `whole`.
    fn field(&self, at: &mut usize, whole: usize) -> Result<Vec<u8>, &'static str> {
        let length = BcsReader::new(&self.read(*at, 2)?).u16()?;
        let from = *at + 2;
        *at = from + usize::from(length);
        if *at > whole {
            return Err("a field is longer than the patch");
        }
        self.read(from, usize::from(length))
    }
}

fn parse_header(header: &[u8]) -> Result<(u32, u8), &'static str> {
    let mut reader = BcsReader::new(header);
    if reader.byte()? != VERSION {
        return Err("its version is not known");
    }
    let length = reader.u32()?;
    let mask = reader.byte()?;
    if mask & !MASK_TAGS != 0 {
        return Err("it has an extension that is not known");
    }
    Ok((length, mask))
}

fn parse_identifier(bytes: &[u8]) -> Result<String, &'static str> {
    let mut reader = BcsReader::new(bytes);
    let identifier = reader.text()?.to_owned();
    reader.finish()?;
    Ok(identifier)
}

fn parse_tags(bytes: &[u8]) -> Result<BTreeMap<String, String>, &'static str> {
    let mut reader = BcsReader::new(bytes);
    let tags = reader.map()?;
    reader.finish()?;
    Ok(tags)
}
