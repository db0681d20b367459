//! The messages that open a data channel (RFC 8832).

/// The DATA_CHANNEL_OPEN message of a reliable, ordered channel without a label and a protocol, as libp2p opens it.
pub(crate) const OPEN: [u8; 12] = [OPEN_TYPE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The DATA_CHANNEL_ACK message.
pub(crate) const ACK: [u8; 1] = [2];

const OPEN_TYPE: u8 = 3;
/// Bytes of the fields before the label: type, channel type, priority, reliability, and two lengths.
const HEADER_BYTES: usize = 12;

/// Whether a message opens a reliable, ordered channel. Labels and protocols have no meaning in libp2p.
pub(crate) fn opens(message: &[u8]) -> bool {
    let [OPEN_TYPE, 0, _, _, _, _, _, _, label_high, label_low, protocol_high, protocol_low, rest @ ..] =
        message
    else {
        return false;
    };
    let label = usize::from(u16::from_be_bytes([*label_high, *label_low]));
    let protocol = usize::from(u16::from_be_bytes([*protocol_high, *protocol_low]));
    rest.len() == label + protocol
}

const _: () = assert!(OPEN.len() == HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_reliable_ordered_openings_count() {
        assert!(opens(&OPEN));
        let mut labelled = OPEN.to_vec();
        labelled[9] = 2;
        assert!(!opens(&labelled), "the label is missing");
        labelled.extend(b"ab");
        assert!(opens(&labelled));
        labelled[1] = 0x80;
        assert!(!opens(&labelled), "unordered");
        for short in 0..OPEN.len() {
            assert!(!opens(&OPEN[..short]));
        }
        assert!(!opens(&ACK));
    }
}
