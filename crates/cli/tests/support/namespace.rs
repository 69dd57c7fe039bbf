//! Commands with processes of their own, as in another container: none of the host can be seen.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// What root runs in the new namespaces. Only this copy of the mount is made private: the directory that
/// is "/" for us need not be one, as after chroot.
const ENTER: &str = "mount --make-private /proc && mount -t proc proc /proc || exit 111
user=$0 group=$1; shift
exec setpriv --reuid \"$user\" --regid \"$group\" --clear-groups \"$@\"";

/// Runs `inner` apart, as the owner of a file. `more` are options of unshare(1).
///
/// Root may do so; others by sudo without a password, or else in a user namespace, where the system allows one.
pub fn apart(inner: &Command, owner: &Metadata, more: &[&str]) -> Command {
    let mut command = match by() {
        By::Sudo => Command::new("sudo"),
        By::Root | By::UserNamespace => Command::new("unshare"),
    };
    if by() == By::Sudo {
        command.args(["-n", "-E", "unshare"]);
    }
    command.args(["--pid", "--fork", "--kill-child"]).args(more);
    if by() == By::UserNamespace {
        command.args(["--user", "--map-current-user", "--mount-proc"]);
    } else {
        let (user, group) = (owner.uid().to_string(), owner.gid().to_string());
        command.args(["--mount", "--propagation", "unchanged"]);
        command.args(["sh", "-c", ENTER, &user, &group]);
    }
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(inner.get_current_dir().unwrap_or("/".as_ref()));
    command
}

/// What those commands said, unless they could not be run apart.
pub fn require_apart(log: &str) {
    let beginnings = ["unshare:", "setpriv:", "sudo:", "mount:"];
    assert!(
        !beginnings
            .iter()
            .any(|beginning| log.starts_with(beginning)),
        "this test needs the right to make a PID namespace (root has it, sudo without a password, or unprivileged user namespaces): {log}"
    );
}

/// Kills all that runs apart.
pub fn kill(child: &mut Child) {
    if by() == By::Sudo {
        // Sudo is root's; with unshare its child goes.
        let mut pkill = Command::new("sudo");
        pkill.args(["-n", "pkill", "-KILL", "-P", &child.id().to_string()]);
        pkill.status().unwrap();
    } else {
        // That it has ended is no failure.
        child.kill().ok();
    }
    child.wait().unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Root,
    Sudo,
    UserNamespace,
}

fn by() -> By {
    static BY: OnceLock<By> = OnceLock::new();
    *BY.get_or_init(|| {
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            return By::Root;
        }
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "true"]).stderr(Stdio::null());
        match sudo.status() {
            Ok(status) if status.success() => By::Sudo,
            _ => By::UserNamespace,
        }
    })
}

/// Runs `script` of sh(1) as root with mounts of its own. Its further words are `$1`, `$2`, and so on. Nothing of what it
/// mounts outlives it, where "/" is a mount; after chroot the script unmounts it.
///
/// As for [`apart`]; in a user namespace, whoever runs this is root.
pub fn with_own_mounts(script: &str, words: &[&str]) -> Command {
    let mut command = match by() {
        By::Sudo => Command::new("sudo"),
        By::Root | By::UserNamespace => Command::new("unshare"),
    };
    match by() {
        By::Sudo => command.args(["-n", "-E", "unshare"]),
        By::Root => &mut command,
        By::UserNamespace => command.args(["--user", "--map-root-user"]),
    };
    command.args(["--mount", "--propagation", "unchanged"]);
    command.args(["sh", "-euc", script, "sh"]).args(words);
    command
}
