//! Connections: how many, how long they may be silent, and how they end.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service as _;

use crate::ServeOptions;
use crate::metrics::Metrics;

/// How long to wait where the process has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(50);

/// No client is waited for longer: the clock has an end.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Accepts connections until `closing` becomes true, then waits for those that are open.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    options: &ServeOptions,
    metrics: &Arc<Metrics>,
    mut closing: watch::Receiver<bool>,
) {
    let timeout = options.client_timeout.min(LONGEST_TIMEOUT);
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(options.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(timeout).max_buf_size(64 << 10);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let stream = Arc::new(Mutex::new(stream));
        let busy = Arc::new(AtomicUsize::new(0));
        let (router, answering) = (router.clone(), busy.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let answering = Answering::new(answering.clone());
            let response = router.clone().call(request.map(Body::new));
            async move {
                let _answering = answering;
                response.await
            }
        });
        let io = TokioIo::new(Patient { stream: stream.clone(), timeout, deadline: None });
        let connection = graceful.watch(http.serve_connection(io, service));
        let counted = Counted::new(metrics.clone());
        tokio::spawn(async move {
            // What a client does to its connection is no event of ours.
            tokio::select! {
                biased;
                _ = connection => {}
                () = left(&stream, &busy) => {}
            }
            drop((counted, permit));
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

type Accepted = (TcpStream, tokio::sync::OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> Option<Accepted> {
    let permit = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Tokens are small and wanted at once.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            // A connection that was reset before it was accepted, or no file descriptor: others go on.
            if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
            None
        }
    }
}

/// A request that is answered, until its response begins.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn new(busy: Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Answering(busy)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Until the client leaves while a request is answered. Hyper does not look where it has the beginning of a further request.
async fn left(stream: &Mutex<TcpStream>, busy: &AtomicUsize) {
    poll_fn(|cx| {
        if busy.load(Ordering::Relaxed) == 0 {
            return Poll::Pending;
        }
        let mut byte = [0];
        match lock(stream).poll_peek(cx, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

/// A stream is whole, whatever a thread did that panicked.
fn lock(stream: &Mutex<TcpStream>) -> MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open connection, counted.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connections.add(1);
        Counted(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.sub(1);
    }
}

/// A connection whose client has to read what is sent: a write that waits for too long is an error.
struct Patient {
    /// Shared with [`left`], on the same task.
    stream: Arc<Mutex<TcpStream>>,
    timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// The result of a write, or an error if writes have waited for too long.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let after = Instant::now() + self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(after)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *lock(&self.stream)).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *lock(&self.stream)).poll_write_vectored(cx, parts);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.stream).is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_shutdown(cx)
    }
}
