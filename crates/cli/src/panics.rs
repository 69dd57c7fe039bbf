//! A panic ends the whole process at once, as a kill does, with the exit code that its caller needs.
//!
//! Every command can be killed at any moment, so nothing is lost. To unwind instead is worse: a runtime or a scope that cannot
//! start all of its threads waits for ever for those that it has, and a panic in a task becomes an error of another kind.
//!
//! A system that denies a thread is no mistake of ours, though libraries panic then: that is said as one error.

use std::panic::{self, PanicHookInfo};
use std::process;

use pgstrata_store::limits;

use crate::args::Output;
use crate::caller::Caller;
use crate::output;

/// How tokio and the standard library begin when the system denies a thread, or the stack on which it handles signals.
const DENIED: [&str; 4] = [
    "OS can't spawn worker thread",
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page",
];

/// Panics end the process from now on. `gets` when `archive-get` is among the words.
pub(crate) fn end_the_process(caller: Caller, gets: bool, output: Output) {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let text = text_of(panic);
        if DENIED.iter().any(|begin| text.starts_with(begin)) {
            let reason = text.rsplit_once(": ").map_or(text, |(_, reason)| reason);
            let error = limits::no_thread(reason);
            let code = caller.failure(error.kind(), gets);
            output::print_error(&error, output, code);
            process::exit(i32::from(code));
        }
        print(panic);
        output::print_bug();
        process::exit(i32::from(caller.panic(gets)));
    }));
}

fn text_of<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}
