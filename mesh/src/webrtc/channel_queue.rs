//! A queue of channels whose length a peer cannot raise by closing and opening channels.

use std::collections::VecDeque;

use crate::webrtc::{
    limits::MAX_CHANNELS,
    peer_connection::{ChannelId, PeerConnection},
};

/// Channels in order, each at most once, with a value. It holds about as many as a connection may have.
pub(crate) struct ChannelQueue<T>(VecDeque<(ChannelId, T)>);

impl<T> ChannelQueue<T> {
    pub(crate) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Adds a channel. A full queue first loses the channels whose numbers were given to others or are free.
    pub(crate) fn push(&mut self, id: ChannelId, value: T, peer: &PeerConnection) {
        if self.0.len() >= MAX_CHANNELS {
            self.0.retain(|(id, _)| peer.has(*id));
        }
        self.0.push_back((id, value));
    }

    pub(crate) fn first(&self) -> Option<&(ChannelId, T)> {
        self.0.front()
    }

    pub(crate) fn pop(&mut self) -> Option<(ChannelId, T)> {
        self.0.pop_front()
    }
}
