//! TLS of the control channel with certificates that openssl and Easy-RSA made.

mod certificates;
mod demands;
mod easyrsa;
mod handshake;
mod keys;
mod openssl_peer;
mod openvpn;
mod support;
mod weak;
