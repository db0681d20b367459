//! Received bytes that a page has not read: bounded for a channel and for its connection.

use std::{cell::Cell, rc::Rc};

use bytes::{Buf as _, BytesMut};

use crate::webrtc::limits::{MAX_UNREAD_BYTES, MAX_UNREAD_CHANNEL_BYTES};

/// Bytes that all channels of a connection hold.
pub(crate) type UnreadTotal = Rc<Cell<usize>>;

/// The bytes of one channel.
pub(super) struct UnreadBytes {
    bytes: BytesMut,
    total: UnreadTotal,
}

impl UnreadBytes {
    pub(super) fn new(total: UnreadTotal) -> Self {
        Self { bytes: BytesMut::new(), total }
    }

    /// Takes a message; `false` if there is no room for it.
    pub(super) fn push(&mut self, message: &[u8]) -> bool {
        let total = self.total.get() + message.len();
        if total > MAX_UNREAD_BYTES || self.bytes.len() + message.len() > MAX_UNREAD_CHANNEL_BYTES {
            return false;
        }
        self.total.set(total);
        self.bytes.extend_from_slice(message);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Moves bytes to the reader; returns their number.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.bytes.len().min(into.len());
        self.bytes.copy_to_slice(into.split_at_mut(count).0);
        self.total.set(self.total.get() - count);
        count
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_and_a_connection_have_bounds() {
        let total = UnreadTotal::default();
        let mut channels: Vec<UnreadBytes> = Vec::new();
        while total.get() + MAX_UNREAD_CHANNEL_BYTES <= MAX_UNREAD_BYTES {
            let mut channel = UnreadBytes::new(total.clone());
            assert!(channel.push(&vec![0; MAX_UNREAD_CHANNEL_BYTES]));
            assert!(!channel.push(&[0]), "the channel is full");
            channels.push(channel);
        }
        assert!(channels.len() > 1);
        let mut more = UnreadBytes::new(total.clone());
        assert!(!more.push(&vec![0; MAX_UNREAD_CHANNEL_BYTES]), "the connection is full");
        assert!(more.is_empty());
        // A read, and the end of a channel, make room.
        assert_eq!(channels[0].read(&mut [0; 10]), 10);
        assert!(more.push(&[7; 10]) && !more.push(&[7]));
        drop(channels.pop());
        assert!(more.push(&vec![8; MAX_UNREAD_CHANNEL_BYTES - 10]));
        let mut read = [0; 11];
        assert_eq!((more.read(&mut read), read), (11, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8]));
        channels.clear();
        assert_eq!(total.get(), MAX_UNREAD_CHANNEL_BYTES - 11);
        drop(more);
        assert_eq!(total.get(), 0);
    }
}
