//! TLS on the control channel, with certificates made by openssl and Easy-RSA.

mod certificates;
mod demands;
mod easyrsa;
mod external;
mod handshake;
mod keys;
mod openssl_peer;
mod openvpn;
mod support;
mod weak;
