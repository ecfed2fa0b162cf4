//! A signal that something is to end: what an `AbortSignal` is in JavaScript, for the pure part and for Rust tools.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Raised once, never lowered. Clones share the state.
#[derive(Clone, Default)]
pub struct Signal(Rc<Inner>);

#[derive(Default)]
struct Inner {
    raised: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
    listeners: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Signal {
    /// Raises it: whoever waits goes on, and each listener is called once.
    pub fn raise(&self) {
        if self.0.raised.replace(true) {
            return;
        }
        let listeners = std::mem::take(&mut *self.0.listeners.borrow_mut());
        let wakers = std::mem::take(&mut *self.0.wakers.borrow_mut());
        for listener in listeners {
            listener();
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.get()
    }

    /// Calls `listener` when it is raised; at once when it has been.
    pub fn listen(&self, listener: impl FnOnce() + 'static) {
        if self.is_raised() {
            listener();
        } else {
            self.0.listeners.borrow_mut().push(Box::new(listener));
        }
    }

    /// One that is raised with this one, or before it by itself.
    #[must_use]
    pub fn child(&self) -> Signal {
        let child = Signal::default();
        let raised = child.clone();
        self.listen(move || raised.raise());
        child
    }

    /// Whether both are clones of one.
    pub fn same(&self, other: &Signal) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until it is raised.
    pub fn raised(&self) -> Raised {
        Raised(self.clone())
    }
}

/// See [`Signal::raised`].
pub struct Raised(Signal);

impl Future for Raised {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let inner = &self.0.0;
        if inner.raised.get() {
            return Poll::Ready(());
        }
        let mut wakers = inner.wakers.borrow_mut();
        // The same task polls again and again: one waker of it is enough.
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
