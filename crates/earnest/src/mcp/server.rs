//! The tools as the protocol has them: listing, calling, reading what they kept. Nothing is kept of
//! a connection.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::problem::{Code, LocalCode};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CreateTaskResult, CustomRequest,
    CustomResult, ElicitRequest, ElicitRequestParams, ErrorCode, GetTaskParams, GetTaskResult,
    Implementation, InputRequest, InputRequests, InputRequiredResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::body::Stored;
use super::door::{Busy, Caller, Door};
use super::fetch::{self, Purchase};
use super::http::JsonOnly;
use super::result::{ApprovalStatus, Fetched, Quoted, ReceiptStatus, Shown, TabStatus, show};
use super::task::TASK_WAIT;
use super::tools::{AskApproval, AskQuote, AskReceipt, AskTab, PaidFetch, TOOLS, arguments, wait};
use super::{PROGRESS_EVERY, read};

/// What the one question of a call is called.
const QUESTION: &str = "approval";

/// A server for one connection, or one request.
#[derive(Debug)]
pub struct Server {
    door: Arc<Door>,
    /// Who calls, where the connection says it; over HTTP each request does.
    own: Option<Caller>,
}

impl Server {
    /// For the one agent at the other end of a pipe.
    pub fn of(door: Arc<Door>, caller: Caller) -> Self {
        Self { door, own: Some(caller) }
    }

    /// For requests that each bring their agent, as [`super::http`] found it.
    pub(super) fn of_requests(door: Arc<Door>) -> Self {
        Self { door, own: None }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        let of_request = || parts(context)?.extensions.get::<Caller>().cloned();
        let caller = self.own.clone().or_else(of_request);
        caller.ok_or_else(|| ErrorData::internal_error("nobody is calling", None))
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = &self.caller(context)?;
        let _place = self.door.place(caller).map_err(|bound| busy(&self.door, bound))?;
        let door = &self.door;
        let given = request.arguments;
        let now = Instant::now();
        let deadline = now.checked_add(door.call_within).unwrap_or(now);
        let late = Late { within: door.call_within };
        match request.name.as_ref() {
            "paid_fetch" => {
                let args: PaidFetch = arguments(given)?;
                let asked_before = request.input_responses.is_some();
                let id = args.request_id.clone();
                let work = self.paid_fetch(caller, args, asked_before, deadline, context);
                let late = || shown(&Fetched::in_progress(&id));
                timeout_at(deadline, work).await.unwrap_or_else(|_| late())
            }
            "quote" => {
                let args: AskQuote = arguments(given)?;
                let quoted = timeout_at(deadline, fetch::quote(door, caller, &args)).await;
                shown(&quoted.unwrap_or_else(|_| late.quote()))
            }
            "tab_status" => {
                let AskTab {} = arguments(given)?;
                let tab = timeout_at(deadline, read::tab(door, caller)).await;
                shown(&tab.unwrap_or_else(|_| late.tab()))
            }
            "approval_status" => {
                let args: AskApproval = arguments(given)?;
                let (id, until) = (&args.approval_id, door.until(deadline, wait(args.wait_s)?));
                let read = timeout_at(deadline, read::approval(door, caller, id, until)).await;
                shown(&read.unwrap_or_else(|_| late.approval(id)))
            }
            "verify_receipt" => {
                let args: AskReceipt = arguments(given)?;
                let read = timeout_at(deadline, read::receipt(door, caller, args)).await;
                shown(&read.unwrap_or_else(|_| late.receipt()))
            }
            other => Err(ErrorData::invalid_params(format!("there is no tool `{other}`"), None)),
        }
    }

    /// Buys. A question to the owner goes through the client where it can put one to its user; its
    /// address stands in the result in any case.
    async fn paid_fetch(
        &self,
        caller: &Caller,
        args: PaidFetch,
        asked_before: bool,
        deadline: Instant,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let until = self.door.until(deadline, wait(args.wait_s)?);
        let purchase = Purchase::new(&self.door, caller, args, until);
        let (fetched, news) = purchase.run().await;
        let asks = news && asks_by_url(context);
        if news && !asks && is_2026(context) && follows_tasks(context) {
            let purchase = purchase.waiting(TASK_WAIT);
            return match self.door.tasks.begin(
                &caller.agent,
                self.door.calls_per_agent,
                purchase,
                &fetched,
            ) {
                Some(task) => Ok(CreateTaskResult::new(task).into()),
                None => shown(fetched.as_ref()),
            };
        }
        let Some(question) = question(&fetched).filter(|_| asks) else {
            return shown(fetched.as_ref());
        };
        if is_2026(context) {
            if asked_before {
                return shown(fetched.as_ref());
            }
            let question = InputRequest::Elicitation(ElicitRequest::new(question));
            let questions = InputRequests::from([(QUESTION.to_owned(), question)]);
            return Ok(InputRequiredResult::from_input_requests(questions).into());
        }
        // Before 2026-07-28 a question needs a connection that stays, which stdio is.
        if self.own.is_some() {
            let left = purchase.left();
            // Whatever the user says here decides nothing: the owner answers at the address.
            let _ = context.peer.create_elicitation_with_timeout(question, Some(left)).await;
            return shown(purchase.run().await.0.as_ref());
        }
        shown(fetched.as_ref())
    }
}

/// No place for another call; which bound it was that refused.
fn busy(door: &Door, bound: Busy) -> ErrorData {
    let (who, count, may) = match bound {
        Busy::Agent => ("this agent has", door.calls_per_agent, "as many as one may"),
        Busy::Owner => (
            "this owner's agents together have",
            door.calls_per_owner,
            "as many as one owner's may",
        ),
        Busy::All => ("all agents together have", door.calls, "as many as they may"),
    };
    let why = format!("busy: {who} {count} calls at once, {may}");
    let data = json!({ "code": Code::RateLimited.as_str(), "retry_after_s": 1 });
    ErrorData::new(ErrorCode(-32000), why, Some(data))
}

/// What the tools that only ask say when their call has to end: nothing is known, and nothing has
/// changed.
struct Late {
    within: Duration,
}

impl Late {
    /// How long to wait before asking again.
    const RETRY_AFTER_S: Option<i64> = Some(5);

    fn why(&self, who: &str) -> String {
        format!("{who} did not answer within {} s", self.within.as_secs())
    }

    fn quote(&self) -> Quoted {
        let (code, why) = (LocalCode::SellerUnreachable.as_str(), self.why("the seller"));
        Quoted { retry_after_s: Self::RETRY_AFTER_S, ..Quoted::failed(code, &why) }
    }

    fn tab(&self) -> TabStatus {
        let (code, why) = (LocalCode::EarnestUnreachable.as_str(), self.why("Earnest"));
        TabStatus { retry_after_s: Self::RETRY_AFTER_S, ..TabStatus::failed(code, &why) }
    }

    fn approval(&self, id: &str) -> ApprovalStatus {
        let (code, why) = (LocalCode::EarnestUnreachable.as_str(), self.why("Earnest"));
        let failed = ApprovalStatus::failed(id, code, &why);
        ApprovalStatus { retry_after_s: Self::RETRY_AFTER_S, ..failed }
    }

    fn receipt(&self) -> ReceiptStatus {
        let (code, why) = (LocalCode::EarnestUnreachable.as_str(), self.why("Earnest"));
        ReceiptStatus { retry_after_s: Self::RETRY_AFTER_S, ..ReceiptStatus::failed(code, &why) }
    }
}

fn shown(result: &impl Shown) -> Result<CallToolResponse, ErrorData> {
    show(result).map(CallToolResponse::from)
}

fn parts(context: &RequestContext<RoleServer>) -> Option<&http::request::Parts> {
    context.extensions.get::<http::request::Parts>()
}

fn is_2026(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Whether the client can send its user to an address.
fn asks_by_url(context: &RequestContext<RoleServer>) -> bool {
    let able = context.client_capabilities().and_then(|able| able.elicitation);
    able.is_some_and(|elicitation| elicitation.url.is_some())
}

fn follows_tasks(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|able| able.supports_tasks())
}

fn question(fetched: &Fetched) -> Option<ElicitRequestParams> {
    Some(ElicitRequestParams::UrlElicitationParams {
        meta: None,
        message: "A purchase waits for its owner's approval.".to_owned(),
        url: fetched.approval_url.clone()?,
        elicitation_id: fetched.approval_id.clone()?,
    })
}

/// Tells a client that asked for it, now and then, that the call is still under way.
async fn with_progress<T>(
    context: &RequestContext<RoleServer>,
    work: impl Future<Output = T>,
) -> T {
    let no_stream =
        parts(context).is_some_and(|parts| parts.extensions.get::<JsonOnly>().is_some());
    let Some(token) = context.meta.get_progress_token().filter(|_| !no_stream) else {
        return work.await;
    };
    let mut work = std::pin::pin!(work);
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    // The first tick is now.
    ticks.tick().await;
    let mut seconds = 0_u32;
    loop {
        tokio::select! {
            done = work.as_mut() => return done,
            _ = ticks.tick() => {
                seconds = seconds.saturating_add(5);
                let progress = ProgressNotificationParam::new(token.clone(), f64::from(seconds))
                    .with_message("still under way");
                // A client that is gone needs no progress.
                let _ = context.peer.notify_progress(progress).await;
            }
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let able =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let own = Implementation::new("earnest", env!("CARGO_PKG_VERSION")).with_title("Earnest");
        ServerConfig::new(able).with_server_info(own).with_instructions(
            "Buys over HTTP from the owner's tab, within limits that the owner set and you cannot \
             change. Use one request_id per thing you want to buy and reuse it for every retry of \
             that thing. When a result says approval_required, show approval_url to the person you \
             work for and call again with the same request_id.",
        )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        TOOLS.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        with_progress(&context, self.call(request, &context)).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let own = self.door.tasks.of(&self.caller(&context)?.agent)?;
        Ok(GetTaskResult::new(own.get_task(&request.task_id)?))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        // A task asks nothing; what it is told all the same is heard politely.
        let own = self.door.tasks.of(&self.caller(&context)?.agent)?;
        own.get_task(&request.task_id).map(|_| ())
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.door.tasks.of(&self.caller(&context)?.agent)?.cancel_task(&request.task_id)
    }

    /// A method of the protocol's whose params were not what it takes ends here as well as one that
    /// there is not.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        match request.method.as_str() {
            method @ ("initialize" | "tools/call" | "resources/read") => {
                let why = format!("the params of `{method}` do not fit");
                Err(ErrorData::invalid_params(why, None))
            }
            method => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None)),
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.caller(&context)?;
        let kept = self.door.bodies.of(&caller.agent).into_iter();
        Ok(ListResourcesResult::with_all_items(kept.map(|body| link(&body)).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.caller(&context)?;
        let Some(body) = self.door.bodies.find(&caller.agent, &request.uri) else {
            let why = "there is no such body, or it was kept long enough";
            return Err(ErrorData::resource_not_found(why, Some(json!({ "uri": request.uri }))));
        };
        let contents = match std::str::from_utf8(&body.bytes) {
            Ok(text) => ResourceContents::text(text, &body.uri),
            Err(_) => ResourceContents::blob(STANDARD.encode(&body.bytes), &body.uri),
        };
        let contents = match body.content_type {
            Some(kind) => contents.with_mime_type(kind),
            None => contents,
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}

fn link(body: &Stored) -> Resource {
    let mut link = Resource::new(body.uri.clone(), "body").with_title("A seller's answer");
    link.mime_type.clone_from(&body.content_type);
    match u64::try_from(body.bytes.len()) {
        Ok(size) => link.with_size(size),
        Err(_) => link,
    }
}
