//! Who may use how much: the mechanisms by which every program here shares its capacity, and refuses floods.
//!
//! Identities of peers are free, so a peer is only the unit of a ban. All else is counted by two keys: the [`Subnet`]
//! of a caller, and the grant that it shows. A caller from the operator's own [`Networks`] is not counted.
//!
//! - [`Bucket`] and [`Buckets`]: an amount in a period, with bursts,
//! - [`Shares`]: a number at once, in all and for each key,
//! - [`Slots`]: capacity with a fair queue,
//! - [`Expiring`]: marks that end by themselves,
//! - [`Guard`]: rates of a subnet, points for misbehaviour, and bans.
//!
//! Everything is pure: the caller passes in the time, in milliseconds of any clock. Each table has a limit, and says
//! which entries go when it is full. The mesh uses this crate in browsers too, so it needs no runtime.

mod ban;
mod bounded_map;
mod bucket;
mod expiring;
mod guard;
mod shares;
mod slots;
mod subnet;

pub use ban::{FIRST_BAN_MS, LONGEST_BAN_MS};
pub use bounded_map::{BoundedMap, MAX_KEYS};
pub use bucket::{Bucket, Buckets, Rate};
pub use expiring::Expiring;
pub use guard::{Caller, Guard, Offence, StreamRefusal, TurnRefusal};
pub use shares::Shares;
pub use slots::{DisplacedError, Full, Key, SlotLimits, Slots, Ticket, YieldGuard};
pub use subnet::{IpNetwork, Networks, NotANetwork, Subnet};
