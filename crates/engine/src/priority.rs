//! How much of the machine a command takes from those who use the server on it.
//!
//! Linux has a scheduling policy for this (sched(7), `SCHED_IDLE`): such a thread runs when nobody else wants its
//! processor, and gives it back at once. Its disk requests wait for those of others as well, where the disk's scheduler
//! knows priorities (ioprio_set(2), "idle"; the class follows from the policy). No privilege is needed to enter it,
//! and one is needed to leave it; so threads enter it that end with the work.
//!
//! The kernel shares processors among groups of processes first (cgroups(7); sched(7), "The autogroup feature"), and gives a
//! thread back at once only to others of its group. With autogroups each backend of a server is a group of its own. What helps
//! there is a short slice, which also counts for the group, and a small weight of the group, where it is this process's alone.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pgstrata_store::courtesy;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{Pid, gettid};
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};
use thread_priority::{Error, ThreadPriority};
use tracing::{debug, info};

/// How often the threads that give way are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Share of the time in which a thread wanted a processor and had one, in percent: with less it starves.
const ENOUGH_PERCENT: u64 = 10;

/// Where the hierarchy of control groups is.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Such a thread gets about a tenth of a processor for which one other thread competes.
const STEADY_NICE: i32 = 10;

/// The share of this process among other sessions when it gives way, of what one gets that wants a processor as well. The
/// smallest is for where somebody watches that there is progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionShare {
    /// A tenth.
    Small,
    /// A seventieth.
    Smallest,
}

/// How the threads that copy get along with everybody else on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impact {
    /// They run when nobody else wants the processors, however long it takes.
    Low,
    /// The same; but when they starve, one thread more works with the priority of `nice 10`.
    Auto,
    /// They run like all others.
    #[default]
    None,
}

/// How often it is decided how many workers there are.
const DECIDE_EVERY: Duration = Duration::from_millis(100);

/// Of a hundred looks, in how many somebody waits when there is a worker too many, and when there is room for one more. At
/// less than a third of what two processors do, others wait in half of all looks beside two workers, and in a tenth beside one.
const TOO_CROWDED: u64 = 20;
const ROOMY: u64 = 3;

/// How many of the workers work: all where nobody else does, fewer while the processors are busy. One always does, and
/// beside others it begins alone.
#[derive(Debug)]
pub(crate) struct Staffing {
    workers: usize,
    allowed: AtomicUsize,
    decided: Mutex<Instant>,
}

impl Staffing {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers,
            allowed: AtomicUsize::new(1),
            decided: Mutex::new(Instant::now()),
        }
    }

    /// Whether worker `number`, from 0, goes on now.
    pub(crate) fn is_wanted(&self, number: usize) -> bool {
        if !courtesy::has_company() {
            self.allowed.store(self.workers, Ordering::Relaxed);
        } else if let Ok(mut decided) = self.decided.try_lock()
            && decided.elapsed() >= DECIDE_EVERY
        {
            *decided = Instant::now();
            let allowed = self.allowed.load(Ordering::Relaxed);
            // Where nobody has looked nobody works, and whoever is left ends what there is.
            let crowding = courtesy::crowding();
            let next = crowding.map_or(self.workers, |crowding| staff(allowed, crowding));
            self.allowed
                .store(next.min(self.workers), Ordering::Relaxed);
        }
        number < self.allowed.load(Ordering::Relaxed)
    }
}

/// How many workers there are to be after so many.
fn staff(allowed: usize, crowding: u64) -> usize {
    match crowding {
        TOO_CROWDED.. => (allowed * 3 / 4).max(1),
        0..ROOMY => allowed + 1,
        _ => allowed,
    }
}

/// The threads that give way, and whether they get anywhere.
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    threads: Mutex<Vec<Pid>>,
}

/// Processor time of some threads, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Served {
    ran: u64,
    waited: u64,
}

impl Yielding {
    /// From now on the calling thread gives way to all others. For a thread that ends with its work.
    pub(crate) fn enter(&self) {
        match enter_idle() {
            Ok(()) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.push(gettid());
            }
            Err(error) => info!(
                ?error,
                "could not give way to other processes: the system refuses SCHED_IDLE"
            ),
        }
    }

    /// Waits until the threads starve, or until the sender of `ended` is gone; whether they starve.
    pub(crate) fn starve_before(&self, ended: &Receiver<()>) -> bool {
        let mut before = self.served();
        loop {
            match ended.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return false,
            }
            let now = self.served();
            if now.starved_since(before) {
                debug!(?before, ?now, "threads that give way get no processor");
                return true;
            }
            before = now;
        }
    }

    /// A thread of which nothing can be read counts as one that has got nothing.
    fn served(&self) -> Served {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let each = threads.iter().filter_map(|thread| {
            let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
            Served::parse(&fs::read_to_string(path).ok()?)
        });
        each.fold(Served::default(), |sum, one| Served {
            ran: sum.ran + one.ran,
            waited: sum.waited + one.waited,
        })
    }
}

impl Served {
    /// Time on the processor, time in its queue (Linux, Documentation/scheduler/sched-stats.rst).
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(ran)), Some(Ok(waited))) => Some(Self { ran, waited }),
            _ => None,
        }
    }

    fn starved_since(self, before: Self) -> bool {
        let ran = self.ran.saturating_sub(before.ran);
        let wanted = ran + self.waited.saturating_sub(before.waited);
        // What waits for the disk or the repository wants no processor.
        let look = u64::try_from(LOOK_EVERY.as_nanos()).unwrap_or(u64::MAX);
        wanted > look / 2 && ran.saturating_mul(100) < wanted.saturating_mul(ENOUGH_PERCENT)
    }
}

/// What a thread that gives way asks to get of a processor at once, nanoseconds: the least that the kernel gives. Who wakes
/// up waits for the rest of it at most, where nobody gives way across groups, and not for some milliseconds.
const SLICE: u64 = 100_000;

/// Asks for short slices (sched_setattr(2), `sched_runtime`; Linux 6.12 and later, others take no notice), which takes a
/// policy and a `nice` value as well. The policy for idle threads has no word for slices, and keeps what was asked for before.
fn take_short_slices(policy: i32, nice: i32) -> io::Result<()> {
    let wanted = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).map_err(io::Error::other)?,
        sched_policy: u32::try_from(policy).map_err(io::Error::other)?,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads the struct, which says how long it is; 0 is the calling thread.
    #[allow(unsafe_code, reason = "no crate that we use has a word for it")]
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn enter_idle() -> Result<(), Error> {
    let short = getpriority_process(None)
        .map_err(io::Error::from)
        .and_then(|nice| take_short_slices(libc::SCHED_BATCH, nice));
    if let Err(error) = short {
        debug!(%error, "the system gives no short slices");
    }
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let entered = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    // Then it asks for `nice 0`, which a thread that was nicer before may not have. Under this policy that counts for nothing.
    match thread_schedule_policy() {
        Ok(policy) if policy == idle => Ok(()),
        Ok(_) | Err(_) => entered,
    }
}

/// Why threads of this process cannot give way to process `other`, as far as the system says.
///
/// The kernel shares processors among groups first, and among the threads of each group then (sched(7), "The autogroup
/// feature" and "cgroups"). So a thread gives way within its own group only.
pub(crate) fn apart_from(other: u32) -> Option<String> {
    let (ours, theirs) = (group("self")?, group(&other.to_string())?);
    (ours != theirs).then(|| {
        format!(
            "the system shares the processors between {ours} and {theirs}, where the server is; so the workers get their \
             share however busy the server is"
        )
    })
}

/// The scheduling group of a process, in words; `None` when that cannot be found out.
fn group(process: &str) -> Option<String> {
    let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let cgroup = cgroup_of_processors(&cgroups, |path| {
        Path::new(CGROUPS).join(path).join("cpu.weight").exists()
    })?;
    if cgroup != "/" {
        return Some(format!("control group \"{cgroup}\""));
    }
    let enabled = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if enabled.is_ok_and(|enabled| enabled.trim() == "1") {
        let named = fs::read_to_string(format!("/proc/{process}/autogroup")).ok()?;
        let name = named.split_ascii_whitespace().next()?.trim_matches('/');
        return Some(format!("session group \"{name}\""));
    }
    Some("the system's own group".to_owned())
}

/// The control group that counts for processors, from `/proc/PID/cgroup` (cgroups(7)). With version 2 it is the
/// innermost one for which that controller is enabled; `is_enabled` gets its path below the hierarchy's root.
fn cgroup_of_processors(text: &str, is_enabled: impl Fn(&str) -> bool) -> Option<String> {
    let lines = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers, path))
    });
    let mut unified = None;
    for (controllers, path) in lines {
        if controllers.split(',').any(|name| name == "cpu") {
            return Some(path.to_owned());
        }
        unified = unified.or(controllers.is_empty().then_some(path));
    }
    let mut path = unified?.trim_end_matches('/');
    while !path.is_empty() && !is_enabled(path.trim_start_matches('/')) {
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
    Some(if path.is_empty() { "/" } else { path }.to_owned())
}

/// Where the share of this process among sessions is read and written (sched(7), "The autogroup feature").
const AUTOGROUP: &str = "/proc/self/autogroup";

/// The `nice` value that this session had as a group before [`lighten_session`].
static SESSION_BEFORE: OnceLock<i32> = OnceLock::new();

/// From now on this session gets a small share of the processors, where the kernel shares them by session.
///
/// Only a session that this process leads is its own, as below systemd and cron: a shell and what else it runs stay what they
/// are.
pub fn lighten_session(share: SessionShare) {
    if !fs::read_to_string("/proc/self/stat").is_ok_and(|stat| leads_session(&stat)) {
        return;
    }
    let nice = match share {
        SessionShare::Small => STEADY_NICE,
        SessionShare::Smallest => 19,
    };
    let before = fs::read_to_string(AUTOGROUP).ok();
    let Some(before) = before.as_deref().and_then(nice_of_session) else {
        return;
    };
    if before < nice && set_session_nice(nice) {
        SESSION_BEFORE.get_or_init(|| before);
    }
}

/// Whether a process leads its session, from its line in `/proc/PID/stat` (proc_pid_stat(5)).
///
/// A leader in another process namespace has the identifier 0 there.
fn leads_session(stat: &str) -> bool {
    let Some((start, fields)) = stat.rsplit_once(") ") else {
        return false;
    };
    // State, parent, process group, session.
    fields.split(' ').nth(3) == start.split(' ').next()
}

/// The session gets the share again that it had before.
fn weigh_session_again() {
    if let Some(before) = SESSION_BEFORE.get() {
        set_session_nice(*before);
    }
}

/// From text like `/autogroup-25 nice 0`.
fn nice_of_session(text: &str) -> Option<i32> {
    text.trim_end().rsplit_once(" nice ")?.1.parse().ok()
}

fn set_session_nice(nice: i32) -> bool {
    let written = fs::write(AUTOGROUP, nice.to_string());
    if let Err(error) = &written {
        debug!(%error, nice, "the share of this session stays");
    }
    written.is_ok()
}

/// One thread of those that give way starves: from now on the calling one, and those that it starts, get about a tenth of a
/// busy processor.
pub(crate) fn help_out() {
    weigh_session_again();
    keep_going();
}

/// From now on the calling thread, and those that it starts, get about a tenth of a busy processor, in short slices.
pub fn keep_going() {
    // Who was started nicer than that stays so: to be less nice is a privilege.
    let nice = getpriority_process(None).map_or(STEADY_NICE, |nice| nice.max(STEADY_NICE));
    // Who was started under another policy keeps it.
    if let Ok(ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other)) =
        thread_schedule_policy()
    {
        match take_short_slices(libc::SCHED_OTHER, nice) {
            Ok(()) => return,
            Err(error) => debug!(%error, "the system gives no short slices"),
        }
    }
    if let Err(error) = setpriority_process(None, nice) {
        info!(%error, "could not lower the priority of a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    fn served(ran: u64, waited: u64) -> Served {
        Served {
            ran: ran * 1_000_000,
            waited: waited * 1_000_000,
        }
    }

    #[test]
    fn workers_are_fewer_while_others_wait_and_come_back_when_nobody_does() {
        for (allowed, crowding, next) in [
            (2, 45, 1),
            (1, 45, 1),
            (1, 10, 1),
            (1, 0, 2),
            (16, 100, 12),
            (16, 19, 16),
            (2, 2, 3),
        ] {
            assert_eq!(staff(allowed, crowding), next, "{allowed} {crowding}");
        }
        let staffing = Staffing::new(3);
        assert!([0, 1, 2].iter().all(|number| staffing.is_wanted(*number)));
        assert!(!staffing.is_wanted(3));
    }

    #[test]
    fn a_thread_starves_when_it_wants_a_processor_and_gets_none() {
        let before = served(500, 900);
        for (ran, waited, starves) in [
            (0, 2000, true),
            (90, 1900, true),
            (300, 1700, false),
            (2000, 0, false),
            // It waits for the disk.
            (0, 0, false),
            (1, 100, false),
        ] {
            let after = served(500 + ran, 900 + waited);
            assert_eq!(after.starved_since(before), starves, "{ran} {waited}");
        }
    }

    #[test]
    fn a_thread_that_gives_way_has_the_idle_policy_and_can_be_looked_at() {
        let yielding = Yielding::default();
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                yielding.enter();
                let sum: u64 = (0..10_000_000).map(std::hint::black_box).sum();
                assert!(sum > 0);
                let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
                let after_name = stat.rsplit(')').next().unwrap();
                // Field 41 of proc_pid_stat(5), the third is the first after the name. SCHED_IDLE is 5.
                let policy = after_name.split_ascii_whitespace().nth(41 - 3).unwrap();
                assert_eq!(policy, "5");
                assert!(yielding.served().ran > 0);
            });
            entered.join().unwrap();
        });
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let policy = stat.rsplit(')').next().unwrap();
        assert_eq!(policy.split_ascii_whitespace().nth(41 - 3), Some("0"));
    }

    #[test]
    fn the_share_of_a_session_is_read_and_only_a_leader_changes_it() {
        for (text, nice) in [
            ("/autogroup-25 nice 0\n", Some(0)),
            ("/autogroup-106231 nice -5", Some(-5)),
            ("/autogroup-25 nice", None),
            ("", None),
        ] {
            assert_eq!(nice_of_session(text), nice, "{text:?}");
        }
        for (stat, leads) in [
            ("25 (pgstrata) R 1 25 25 0 -1", true),
            ("25 (a) R 1 25) R 24 25 24 0 -1", false),
            ("25 (led from another namespace) R 0 0 0 0 -1", false),
            ("", false),
        ] {
            assert_eq!(leads_session(stat), leads, "{stat:?}");
        }
        let share = || fs::read_to_string(AUTOGROUP).ok();
        let before = share();
        if !leads_session(&fs::read_to_string("/proc/self/stat").unwrap()) {
            lighten_session(SessionShare::Smallest);
            assert_eq!(share(), before);
        }
    }

    #[test]
    fn the_group_that_counts_is_the_innermost_with_the_controller() {
        let of = |text: &str, enabled: &[&str]| {
            cgroup_of_processors(text, |path| enabled.contains(&path))
        };
        let service = "0::/system.slice/postgresql@15-main.service\n";
        for (text, enabled, expected) in [
            (service, &[][..], Some("/")),
            (service, &["system.slice"], Some("/system.slice")),
            (
                service,
                &["system.slice", "system.slice/postgresql@15-main.service"],
                Some("/system.slice/postgresql@15-main.service"),
            ),
            ("0::/\n", &[], Some("/")),
            ("4:memory:/m\n2:cpu,cpuacct:/c\n0::/\n", &[], Some("/c")),
            ("2:cpuacct:/c\n", &[], None),
            ("", &[], None),
        ] {
            assert_eq!(of(text, enabled).as_deref(), expected, "{text}");
        }
        assert_eq!(apart_from(std::process::id()), None);
    }

    #[test]
    fn a_thread_that_goes_on_is_nice_and_stays_under_its_policy() {
        let after = |before: fn()| {
            let thread = thread::spawn(move || {
                before();
                keep_going();
                (
                    getpriority_process(None).unwrap(),
                    thread_schedule_policy().unwrap(),
                )
            });
            thread.join().unwrap()
        };
        let other = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let ours = getpriority_process(None).unwrap();
        assert_eq!(after(|| ()), (ours.max(STEADY_NICE), other));
        assert_eq!(
            after(|| setpriority_process(None, 15).unwrap()),
            (15, other)
        );
        assert_eq!(after(|| enter_idle().unwrap()).1, idle);
    }

    #[test]
    fn who_has_ended_does_not_starve() {
        let (end, ended) = channel();
        drop(end);
        assert!(!Yielding::default().starve_before(&ended));
    }
}
