use std::collections::VecDeque;

use crate::{Command, DataFormat, Link, Target, auth};

/// An action that an engine requests from its driver.
#[derive(Debug)]
pub enum Output<E, F: DataFormat> {
    /// Send one packet.
    Send(Link, Vec<u8>),
    /// Change the data plane.
    Plane(Command<F>),
    /// Resolve, connect, and report with [`crate::Input::LinkUp`] or [`crate::Input::DialFailed`].
    Dial(Target),
    /// Close a link that the engine no longer needs.
    Hangup(Link),
    /// Request authorization of a peer; the response may take time.
    AuthRequest(auth::RequestId, auth::Request),
    /// Report an event.
    Event(E),
}

/// The single ordered list of an engine's outputs.
///
/// Order is part of the contract: "install key" precedes the packet that lets the peer use that key, and the driver
/// performs the outputs in order.
#[derive(Debug)]
pub struct Outbox<E, F: DataFormat> {
    queue: VecDeque<Output<E, F>>,
}

impl<E, F: DataFormat> Default for Outbox<E, F> {
    fn default() -> Self {
        Self { queue: VecDeque::new() }
    }
}

impl<E, F: DataFormat> Outbox<E, F> {
    /// Creates an empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shrinks the list to its contents.
    pub fn shrink_to_fit(&mut self) {
        self.queue.shrink_to_fit();
    }

    /// Appends an output.
    pub fn push(&mut self, output: Output<E, F>) {
        self.queue.push_back(output);
    }

    /// Appends a packet.
    pub fn send(&mut self, link: Link, frame: Vec<u8>) {
        self.push(Output::Send(link, frame));
    }

    /// Appends a command to the data plane.
    pub fn plane(&mut self, command: Command<F>) {
        self.push(Output::Plane(command));
    }

    /// Appends an event.
    pub fn event(&mut self, event: E) {
        self.push(Output::Event(event));
    }

    /// Removes and returns the oldest output.
    pub fn pop(&mut self) -> Option<Output<E, F>> {
        self.queue.pop_front()
    }

    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether there are no outputs.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
