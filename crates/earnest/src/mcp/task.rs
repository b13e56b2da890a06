//! Waiting for an owner as a task, for clients of 2026-07-28 that declare tasks: the handle comes at
//! once with the address to show, and the purchase is the task's result.
//!
//! A task is its agent's: to anybody else there is none of that id. It ends with its approval, and
//! giving it up charges nothing and takes nothing back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::Task;
use rmcp::task_manager::{TaskExit, TaskManager, TaskOptions};

use super::fetch::Purchase;
use super::result::{Fetched, show};

/// How long a task waits, and is kept: a question to an owner is over after 15 minutes unless it was
/// set otherwise, and no client is seen to follow a task for longer than an hour. Past that the task
/// ends with the question as it stands, and the same `request_id` goes on.
pub(super) const TASK_WAIT: Duration = Duration::from_secs(3600);
const TASK_WAIT_MS: u64 = 3_600_000;
/// How often a client should look.
const POLL_MS: u64 = 3000;
/// The most agents whose tasks are kept: a few kilobytes each.
const MOST_AGENTS: usize = 1024;

/// The tasks of every agent.
#[derive(Default)]
pub(super) struct Tasks(Mutex<HashMap<Arc<str>, TaskManager>>);

impl Tasks {
    /// The tasks of one agent.
    ///
    /// # Errors
    /// Where it never had one.
    pub(super) fn of(&self, agent: &str) -> Result<TaskManager, ErrorData> {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = tasks.get(agent).cloned();
        own.ok_or_else(|| ErrorData::invalid_params("there is no such task", None))
    }

    /// Goes on waiting for an owner who was asked; none where the agent has `most` tasks already, or
    /// too many agents have some.
    pub(super) fn begin(
        &self,
        agent: &Arc<str>,
        most: usize,
        purchase: Purchase,
        asked: &Fetched,
    ) -> Option<Task> {
        let own = {
            let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if tasks.len() >= MOST_AGENTS {
                tasks.retain(|_, own| own.running_task_count() > 0);
            }
            if tasks.len() >= MOST_AGENTS && !tasks.contains_key(agent) {
                return None;
            }
            tasks.entry(Arc::clone(agent)).or_default().clone()
        };
        if own.running_task_count() >= most {
            return None;
        }
        let options = TaskOptions::new()
            .with_ttl_ms(TASK_WAIT_MS)
            .with_poll_interval_ms(POLL_MS)
            .with_status_message(asked.text.clone());
        Some(own.spawn(options, move |task| {
            Box::pin(async move {
                tokio::select! {
                    () = task.cancelled() => Err(TaskExit::Cancelled),
                    (fetched, _) = purchase.run() => Ok(show(fetched.as_ref())?),
                }
            })
        }))
    }
}
