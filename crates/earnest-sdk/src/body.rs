//! Watches a body end: only a clean end is paid for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::paid::Ticket;

/// Passes a body through frame by frame, unbuffered, and redeems the ticket when it ends cleanly.
///
/// A server need not ask for the end of a body: it stops at the announced length, or as soon as
/// the body says it is at its end. Both count as a clean end here. An error, fewer bytes than
/// announced, more bytes than announced, or being dropped in between: the ticket is dropped, which
/// means *failed*. What this cannot see is whether the last bytes, once handed to the server,
/// reached the buyer.
pub(crate) struct WatchedBody {
    inner: Body,
    ticket: Option<Ticket>,
    announced: Option<u64>,
    passed: u64,
    /// Set while the inner body runs: still set afterwards, it panicked.
    running: bool,
}

impl WatchedBody {
    /// `announced` is what `Content-Length` says, if it says anything.
    pub(crate) fn new(inner: Body, announced: Option<u64>, ticket: Ticket) -> Self {
        let announced = announced.or_else(|| inner.size_hint().exact());
        Self { inner, ticket: Some(ticket), announced, passed: 0, running: false }
    }

    fn is_whole(&self) -> bool {
        self.announced.is_none_or(|announced| announced == self.passed)
    }

    fn end(&mut self) {
        let whole = self.is_whole();
        if let Some(ticket) = self.ticket.take()
            && whole
        {
            ticket.redeem();
        }
    }

    fn passes(&mut self, frame: &Frame<Bytes>) {
        let length = frame.data_ref().map_or(0, Bytes::len);
        self.passed = self.passed.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        let at_announced_end = self.announced == Some(self.passed);
        let too_much = self.announced.is_some_and(|announced| self.passed > announced);
        if at_announced_end || too_much || self.inner.is_end_stream() {
            self.end();
        }
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.running = true;
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        self.running = false;
        match ready!(polled) {
            Some(Ok(frame)) => {
                self.passes(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.ticket = None;
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                self.end();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for WatchedBody {
    /// A body that is at its end without being asked, such as an empty one, ended cleanly.
    fn drop(&mut self) {
        if !self.running && self.inner.is_end_stream() {
            self.end();
        }
    }
}
