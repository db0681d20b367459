//! Wipes the secrets that ended frames leave on a thread's stack.
//!
//! A moved, hashed or derived secret leaves copies in ended frames; a self-wiping type wipes only its last
//! location. A thread that lives on after it has used a secret calls this.

use std::hint::black_box;

/// Bytes of one frame.
const FRAME_BYTES: usize = 16 * 1024;

/// Overwrites about `bytes` bytes below the caller's frame. The thread's stack must have room for them.
#[inline(never)]
pub fn wipe(bytes: usize) {
    let mut frame = [0u8; FRAME_BYTES];
    black_box(&mut frame);
    if bytes > FRAME_BYTES {
        wipe(bytes - FRAME_BYTES);
    }
    // The frame is in use until here, so the call above is no tail call and its frame lies below.
    black_box(&mut frame);
}

#[cfg(test)]
mod tests {
    #[test]
    fn takes_about_as_much_stack_as_it_is_told_to() {
        let small = std::thread::Builder::new().stack_size(512 * 1024);
        small.spawn(|| super::wipe(256 * 1024)).unwrap().join().unwrap();
    }
}
