//! The control socket that `ovs-appctl` talks to: commands by name, answered with text.
//!
//! A part of the daemon adds its commands to the [`Registry`] while it starts:
//!
//! ```
//! use heddle_switchd::unixctl::Registry;
//! let registry = Registry::new();
//! registry.register("fdb/show", "bridge", 1, 1, |args| match args {
//!     [bridge] if bridge == "br0" => Ok(" port  VLAN  MAC                Age\n".to_owned()),
//!     _ => Err("no such bridge".to_owned()),
//! });
//! registry.register_async("revalidator/wait", "", 0, 0, |_args| async { Ok(String::new()) });
//! ```
//!
//! Arguments do not include the command's name. `Ok` is printed by `ovs-appctl` on its standard output, `Err`
//! on its standard error with exit status 2. Handlers run concurrently when several clients call; each
//! connection has one command in progress at a time. A plain handler may block (it runs on a thread for
//! that), an asynchronous one must not. A handler that panics costs its client an error reply, nothing else.

mod connection;
mod server;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::RwLock;

pub use server::Server;

/// What a command answers: text for the client's standard output, or for its standard error.
pub type Reply = Result<String, String>;

type PlainFn = dyn Fn(&[String]) -> Reply + Send + Sync;
type AsyncFn = dyn Fn(Vec<String>) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;

#[derive(Clone)]
enum Handler {
    Plain(Arc<PlainFn>),
    Async(Arc<AsyncFn>),
}

struct Command {
    /// `None` hides the command from `list-commands`.
    usage: Option<String>,
    min_args: usize,
    max_args: usize,
    handler: Handler,
}

/// The commands that the daemon knows. Cloning gives another handle to the same set.
#[derive(Clone, Default)]
pub struct Registry {
    commands: Arc<RwLock<BTreeMap<String, Command>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.commands.read().keys()).finish()
    }
}

impl Registry {
    /// A registry that knows `list-commands` only.
    #[must_use]
    pub fn new() -> Registry {
        let registry = Registry::default();
        let weak = Arc::downgrade(&registry.commands);
        registry.register("list-commands", "", 0, 0, move |_| {
            Ok(weak
                .upgrade()
                .map(|commands| list(&commands.read()))
                .unwrap_or_default())
        });
        registry
    }

    /// Adds a command with a handler that may block. `usage` describes the arguments in `list-commands`;
    /// `None` hides the command. `max_args` is `usize::MAX` for no limit.
    ///
    /// Returns false, and changes nothing, when the name is taken.
    pub fn register<'a>(
        &self,
        name: &str,
        usage: impl Into<Option<&'a str>>,
        min_args: usize,
        max_args: usize,
        handler: impl Fn(&[String]) -> Reply + Send + Sync + 'static,
    ) -> bool {
        self.add(
            name,
            usage.into(),
            min_args,
            max_args,
            Handler::Plain(Arc::new(handler)),
        )
    }

    /// Like [`Registry::register`], for a handler that waits for something.
    pub fn register_async<'a, F, Fut>(
        &self,
        name: &str,
        usage: impl Into<Option<&'a str>>,
        min_args: usize,
        max_args: usize,
        handler: F,
    ) -> bool
    where
        F: Fn(Vec<String>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let boxed = move |args| -> Pin<Box<dyn Future<Output = Reply> + Send>> { Box::pin(handler(args)) };
        self.add(
            name,
            usage.into(),
            min_args,
            max_args,
            Handler::Async(Arc::new(boxed)),
        )
    }

    fn add(
        &self,
        name: &str,
        usage: Option<&str>,
        min_args: usize,
        max_args: usize,
        handler: Handler,
    ) -> bool {
        let mut commands = self.commands.write();
        let free = !commands.contains_key(name);
        if free {
            let command = Command {
                usage: usage.map(str::to_owned),
                min_args,
                max_args,
                handler,
            };
            commands.insert(name.to_owned(), command);
        }
        free
    }

    /// Runs a command as if a client had sent it.
    ///
    /// # Errors
    /// The command is unknown, has too few or too many arguments, or its handler says so.
    pub async fn run(&self, name: &str, args: Vec<String>) -> Reply {
        let handler = self.find(name, args.len())?;
        let done = match handler {
            Handler::Plain(handler) => tokio::task::spawn_blocking(move || handler(&args)).await,
            Handler::Async(handler) => tokio::spawn(async move { handler(args).await }).await,
        };
        done.unwrap_or_else(|_| Err(format!("\"{name}\" command failed: see the log")))
    }

    /// What `list-commands` prints.
    pub fn list(&self) -> String {
        list(&self.commands.read())
    }

    fn find(&self, name: &str, n_args: usize) -> Result<Handler, String> {
        let commands = self.commands.read();
        let command = commands.get(name).ok_or_else(|| {
            format!(
                "\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
            )
        })?;
        if n_args < command.min_args {
            return Err(format!(
                "\"{name}\" command requires at least {} arguments",
                command.min_args
            ));
        }
        if n_args > command.max_args {
            return Err(format!(
                "\"{name}\" command takes at most {} arguments",
                command.max_args
            ));
        }
        Ok(command.handler.clone())
    }
}

fn list(commands: &BTreeMap<String, Command>) -> String {
    let mut out = String::from("The available commands are:\n");
    for (name, command) in commands {
        if let Some(usage) = &command.usage {
            let _ = writeln!(out, "  {name:<23} {usage}");
        }
    }
    out
}
