//! A thread pool for work in parts, with a caller that waits for all of them.
//!
//! [`Threads::each`] runs a function once on each part of a slice, on the calling thread and the pool's
//! threads. Threads take parts one by one, so a delayed thread takes fewer, and the caller waits only for
//! parts in progress. The assignment of parts to threads is arbitrary; results must not depend on it.
//!
//! An idle thread polls for some microseconds, yields some times and then sleeps: it never spins while other
//! threads need the core.

#![expect(
    unsafe_code,
    reason = "a borrowed function and its parts are lent to threads that outlive the loan"
)]

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

/// Polls for work before a thread yields: some 20 microseconds, longer than the gaps between a step's phases.
const LOOKS: u32 = 400;

/// Yields before a thread sleeps.
const GIVES_WAY: u32 = 50;

/// The largest pool. More threads than this gain nothing for one step.
pub const MAX_THREADS: usize = 64;

/// A job in progress. It lives on the caller's stack until all its parts are done.
struct Job {
    /// Runs part `index` on the thread of this number.
    run: unsafe fn(context: *const (), thread: usize, index: usize),
    context: *const (),
}

/// The job in progress and the sleeping threads.
struct PoolState {
    /// The job's number in the upper half, the count of untaken parts in the lower half.
    state: AtomicU64,
    /// The job with that number.
    job: AtomicPtr<Job>,
    /// Its unfinished parts.
    undone: AtomicUsize,
    /// The panic of a part.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicU32,
    sleep: Mutex<bool>,
    wake: Condvar,
}

/// A pool of threads.
pub struct Threads {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// A pool of `count` threads, the caller's included; at least 1 and at most [`MAX_THREADS`].
    ///
    /// # Errors
    /// If the system refuses more threads.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let shared = Arc::new(PoolState {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            undone: AtomicUsize::new(0),
            panic: Mutex::new(None),
            sleepers: AtomicU32::new(0),
            sleep: Mutex::new(false),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for number in 1..count.clamp(1, MAX_THREADS) {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("engine-{number}"));
            pool.workers.push(builder.spawn(move || shared.work(number))?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` once on each part, with the number of its thread. Numbers are below [`Self::count`]; no
    /// two concurrent calls have the same number. Returns when all parts are done.
    ///
    /// # Panics
    /// If `work` panics, after all parts in progress are done.
    pub fn each<P: Send>(&mut self, parts: &mut [P], work: impl Fn(usize, &mut P) + Sync) {
        if self.workers.is_empty() || parts.len() <= 1 {
            parts.iter_mut().for_each(|part| work(0, part));
            return;
        }
        for parts in parts.chunks_mut(u32::MAX as usize) {
            self.shared.run(parts, &[], &work);
        }
    }

    /// As [`Self::each`], but each thread first takes its own parts in order, and then other threads' parts.
    /// Thread `t` owns the parts from `starts[t]` to `starts[t + 1]`; the last thread owns the rest.
    ///
    /// # Panics
    /// As [`Self::each`]. Also if `starts` has not one entry per thread, or is not in order from 0 on within
    /// the parts. Also if there are more than 2^32 parts.
    pub fn each_near<P: Send>(
        &mut self,
        parts: &mut [P],
        starts: &[usize],
        work: impl Fn(usize, &mut P) + Sync,
    ) {
        if self.workers.is_empty() || parts.len() <= 1 {
            parts.iter_mut().for_each(|part| work(0, part));
            return;
        }
        let ends = starts.iter().skip(1).copied().chain([parts.len()]);
        let shares: Vec<Share> = starts
            .iter()
            .zip(ends)
            .map(|(start, end)| Share { next: AtomicUsize::new(*start), end })
            .collect();
        assert!(
            shares.len() == self.count()
                && starts[0] == 0
                && starts.is_sorted()
                && u32::try_from(parts.len()).is_ok(),
            "a share for each thread"
        );
        assert!(shares.iter().all(|share| share.end <= parts.len()), "shares of the parts");
        self.shared.run(parts, &shares, &work);
    }
}

/// The arguments of a [`Job`], with their types.
struct JobContext<'a, P, W> {
    parts: *mut P,
    work: &'a W,
    /// The threads' own parts; empty if all parts are common.
    shares: &'a [Share],
}

/// One thread's own parts, in a cache line of their own.
#[repr(align(64))]
struct Share {
    /// The first untaken part. It passes the end when other threads come looking.
    next: AtomicUsize,
    end: usize,
}

/// Takes the next part of a thread's own share, or of another share.
fn take(shares: &[Share], thread: usize) -> usize {
    let (before, from) = shares.split_at(thread);
    for share in from.iter().chain(before) {
        // Read first: a write by each thread would move the cache line between caches.
        if share.next.load(Ordering::Relaxed) < share.end {
            let index = share.next.fetch_add(1, Ordering::Relaxed);
            if index < share.end {
                return index;
            }
        }
    }
    unreachable!("who may take a part finds one: there are as many as those who may")
}

/// Runs one part.
///
/// # Safety
/// `context` points to a [`JobContext`] of these types with at least `index + 1` parts. The caller calls it
/// once for each index. If there are shares, there is one for each thread, and together they contain each
/// part once.
unsafe fn run_part<P: Send, W: Fn(usize, &mut P) + Sync>(context: *const (), thread: usize, index: usize) {
    // SAFETY: guaranteed by the caller. The job's owner borrows the part mutably, and waits. No other thread
    // uses the part, because each index is taken once, and so is each number of a share. `P: Send` permits
    // the part on this thread, `W: Sync` the function.
    unsafe {
        let context = &*context.cast::<JobContext<'_, P, W>>();
        let index = if context.shares.is_empty() { index } else { take(context.shares, thread) };
        (context.work)(thread, &mut *context.parts.add(index));
    }
}

impl PoolState {
    fn run<P: Send, W: Fn(usize, &mut P) + Sync>(&self, parts: &mut [P], shares: &[Share], work: &W) {
        let context = JobContext { parts: parts.as_mut_ptr(), work, shares };
        let job = Job { run: run_part::<P, W>, context: (&raw const context).cast() };
        let number = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
        self.undone.store(parts.len(), Ordering::Relaxed);
        self.job.store((&raw const job).cast_mut(), Ordering::Relaxed);
        // SeqCst, with the sleepers' count below: either the sleeper sees the job, or this thread sees the
        // sleeper.
        self.state.store(number << 32 | parts.len() as u64, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
        while self.take_part(0) {}
        // All parts have been taken. `job` and `context` must live until the last part is done.
        let mut looks = 0;
        while self.undone.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Takes a part and runs it; false if no part is left.
    fn take_part(&self, thread: usize) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let left = state & u64::from(u32::MAX);
            if left == 0 {
                return false;
            }
            let job = self.job.load(Ordering::Relaxed);
            // On success, this thread has seen the job's number that belongs to the part. Until the part is
            // done, that job is not over. So the value read from `job` was that job's.
            match self.state.compare_exchange_weak(state, state - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let index = usize::try_from(left - 1).expect("an index of a slice");
                    // SAFETY: the job lives until it has no undone parts, and this part is one of them. The
                    // exchange gave this thread alone the part.
                    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
                        ((*job).run)((*job).context, thread, index)
                    }));
                    if let Err(panic) = done {
                        *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                    }
                    self.undone.fetch_sub(1, Ordering::Release);
                    return true;
                }
                Err(now) => state = now,
            }
        }
    }

    fn work(&self, thread: usize) {
        let mut idle = 0;
        loop {
            if self.take_part(thread) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < LOOKS {
                std::hint::spin_loop();
            } else if idle < LOOKS + GIVES_WAY {
                thread::yield_now();
            } else if self.sleep() {
                return;
            } else {
                idle = 0;
            }
        }
    }

    /// Sleeps until there may be work; true if the pool is shutting down.
    fn sleep(&self) -> bool {
        let mut over = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !*over && self.state.load(Ordering::SeqCst) & u64::from(u32::MAX) == 0 {
            over = self.wake.wait(over).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        *over
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        *self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker does not panic: it catches the panics of its parts.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_part_is_done_once() {
        for count in [1, 2, 5] {
            let mut threads = Threads::new(count).unwrap();
            for parts in [0, 1, 2, 3, 100, 1000] {
                let mut parts = vec![0; parts];
                for round in 1..=20 {
                    threads.each(&mut parts, |_, part| *part += 1);
                    assert!(parts.iter().all(|part| *part == round));
                }
            }
        }
    }

    #[test]
    fn every_part_of_a_share_is_done_once() {
        let mut threads = Threads::new(3).unwrap();
        for (count, starts) in
            [(0, [0, 0, 0]), (1, [0, 0, 1]), (7, [0, 0, 0]), (7, [0, 7, 7]), (500, [0, 3, 400])]
        {
            let mut parts = vec![0; count];
            for round in 1..=200 {
                threads.each_near(&mut parts, &starts, |_, part| *part += 1);
                assert!(parts.iter().all(|part| *part == round));
            }
        }
        for starts in [vec![0, 1], vec![0, 3, 2], vec![0, 1, 9], vec![1, 1, 2]] {
            let mut parts = [0; 4];
            let result = catch_unwind(AssertUnwindSafe(|| threads.each_near(&mut parts, &starts, |_, _| ())));
            assert!(result.is_err(), "{starts:?}");
        }
    }

    #[test]
    fn a_thread_begins_with_its_own_parts() {
        let mut threads = Threads::new(2).unwrap();
        // Each thread holds its first part until the other thread has one too.
        let firsts = [const { AtomicUsize::new(usize::MAX) }; 2];
        let mut parts: Vec<usize> = (0..10).collect();
        threads.each_near(&mut parts, &[0, 5], |thread, part| {
            let first =
                firsts[thread].compare_exchange(usize::MAX, *part, Ordering::SeqCst, Ordering::SeqCst);
            while first.is_ok() && firsts[1 - thread].load(Ordering::SeqCst) == usize::MAX {
                thread::yield_now();
            }
        });
        assert_eq!(firsts.map(AtomicUsize::into_inner), [0, 5]);
    }

    #[test]
    fn a_thread_number_is_used_by_one_at_a_time() {
        let mut threads = Threads::new(4).unwrap();
        let busy: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        threads.each(&mut [(); 5000], |thread, ()| {
            assert_eq!(busy[thread].fetch_add(1, Ordering::SeqCst), 0);
            std::hint::black_box(thread);
            busy[thread].fetch_sub(1, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut threads = Threads::new(3).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| {
            threads.each(&mut (0..50).collect::<Vec<_>>(), |_, part| assert_ne!(*part, 17));
        }));
        assert!(result.is_err());
        let mut parts = [0; 50];
        threads.each(&mut parts, |_, part| *part = 1);
        assert_eq!(parts, [1; 50]);
    }

    #[test]
    fn sleeping_threads_wake() {
        let mut threads = Threads::new(2).unwrap();
        while threads.shared.sleepers.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // Two parts that wait for each other: they finish only if another thread has woken.
        let met = AtomicUsize::new(0);
        threads.each(&mut [(); 2], |_, ()| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }
}
