//! Known answers from the specifications, and from the reference implementation's unit tests where
//! it uses a function differently.

use proptest::prelude::*;

use super::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// RFC 2202 and RFC 4231, the first case of each.
#[test]
fn hmac_known_answers() {
    let cases = [
        (Digest::Md5, 16, "9294727a3638bb1c13f48ef8158bfc9d"),
        (Digest::Sha1, 20, "b617318655057264e28bc0b6fb378c8ef146be00"),
        (Digest::Sha224, 20, "896fb1128abbdf196832107cd49df33f47b4b1169912ba4f53684b22"),
        (Digest::Sha256, 20, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (
            Digest::Sha384,
            20,
            "afd03944d84895626b0825f4ab46907f15f9dadbe4101ec682aa034c7cebc59c
             faea9ea9076ede7f4af152e8b2fa9cb6",
        ),
        (
            Digest::Sha512,
            20,
            "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde
             daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
        ),
    ];
    for (digest, key_len, expected) in cases {
        let key = HmacKey::new(digest, &vec![0x0b; key_len]).unwrap();
        let mac = unhex(expected);
        assert_eq!(key.sign(&[b"Hi There"]).as_bytes(), mac, "{digest}");
        assert_eq!(key.sign(&[b"Hi", b"", b" There"]).as_bytes(), mac, "{digest} in parts");
        let mut stream = key.start();
        stream.update(b"Hi ");
        stream.update(b"There");
        assert_eq!(stream.finish().as_bytes(), mac, "{digest}, piece by piece");
        assert_eq!(digest.output_len(), mac.len());
        assert!(key.verify(&[b"Hi ", b"There"], &mac));
        assert!(!key.verify(&[b"Hi there"], &mac));
        assert!(!key.verify(&[b"Hi There"], &mac[..mac.len() - 1]), "a shortened code");
        assert!(!key.verify(&[b"Hi There"], &[]));
        assert_eq!(hmac(digest, &vec![0x0b; key_len], &[b"Hi There"]).unwrap().as_bytes(), mac);
    }
}

/// From test_crypto.c: the HMAC of a text twice in a row.
#[test]
fn hmac_of_the_reference_implementation() {
    let mut key = [0; 20];
    key[0] = 0x0b;
    let mac = HmacKey::new(Digest::Sha1, &key).unwrap().sign(&[IPSUM, IPSUM]);
    assert_eq!(mac.as_bytes(), unhex("58ea5af04294e917ed84b9f083302 3ae8ba77eb8"));
}

const IPSUM: &[u8] = b"Lorem ipsum dolor sit amet, consectetur adipisici elit, sed eiusmod \
    tempor incidunt ut labore et dolore magna aliqua.";

#[test]
fn digest_names() {
    for digest in Digest::ALL {
        assert_eq!(Digest::from_name(digest.name()), Some(digest));
        assert_eq!(Digest::from_name(&digest.name().to_lowercase()), Some(digest));
    }
    for name in ["SHA-256", "sha2-256", "RSA-SHA256"] {
        assert_eq!(Digest::from_name(name), Some(Digest::Sha256), "{name}");
    }
    assert_eq!(Digest::from_name("SHA-1"), Some(Digest::Sha1));
    for name in ["", "none", "SHA", "SHA2-1", "SHA3-256", "SHA2256", "MD4", "-MD5"] {
        assert_eq!(Digest::from_name(name), None, "{name}");
    }
}

#[test]
fn sha256_known_answer() {
    let expected = unhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(sha256(&[b"a", b"bc"]).as_slice(), expected);
}

/// NIST SP 800-38A F.5.5, the first two blocks and a half.
#[test]
fn aes256_ctr_known_answer() {
    let key = unhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
    let key = key.try_into().unwrap();
    let iv = unhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").try_into().unwrap();
    let plain =
        unhex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51 30c81c46a35ce411");
    let sealed =
        unhex("601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5 2b0930daa23de94c");
    let mut data = plain.clone();
    aes256_ctr(&key, &iv, &mut data).unwrap();
    assert_eq!(data, sealed);
    aes256_ctr(&key, &iv, &mut data).unwrap();
    assert_eq!(data, plain);
    aes256_ctr(&key, &iv, &mut []).unwrap();
}

/// The counter spans all 128 bits: it carries out of the low half and wraps to zero.
#[test]
fn aes256_ctr_counter_carries() {
    let cipher = Aes256Ctr::new(&[9; 32]).unwrap();
    let mut both = [0; 32];
    cipher.apply(&[0xff; 16], &mut both).unwrap();
    let mut second = [0; 16];
    cipher.apply(&[0; 16], &mut second).unwrap();
    assert_eq!(both[16..], second);
}

/// From test_crypto.c.
#[test]
fn tls1_prf_known_answer() {
    let seed = b"Quis aute iure reprehenderit in voluptate velit esse cillum dolore";
    let expected = unhex("d98c8518c85e946927916acfc2d592fbb1567e4b4b1459e6a904ac2ddab72d67");
    assert_eq!(IPSUM.len() % 2, 1, "the halves of the secret share a byte");
    let mut out = [0; 32];
    tls1_prf(IPSUM, b"", &[seed], &mut out).unwrap();
    assert_eq!(out.as_slice(), expected);
    // Label and seed are concatenated.
    tls1_prf(IPSUM, b"Quis ", &[b"aute ", &seed[10..]], &mut out).unwrap();
    assert_eq!(out.as_slice(), expected);
    // A shorter output is a prefix of a longer one.
    let mut short = [0; 7];
    tls1_prf(IPSUM, b"", &[seed], &mut short).unwrap();
    assert_eq!(short.as_slice(), &expected[..7]);
}

/// RFC 5869 A.1 to A.3, and the label that OpenSSL 3 and OpenVPN use in their own tests.
#[test]
fn hkdf_expand_known_answers() {
    let prk1 = "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5";
    let prk2 = "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244";
    let prk3 = "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04";
    let info2: Vec<u8> = (0xb0..=0xff).collect();
    let cases: [(&str, Vec<u8>, &str); 4] = [
        (
            prk1,
            (0xf0..=0xf9).collect(),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            prk2,
            info2,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac78272
             71cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f
             1d87",
        ),
        (
            prk3,
            vec![],
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
        (
            prk1,
            unhex("001b0e6f76706e20756e6974207465737400"),
            "875a8eec18556380b8d933ed323c2df8e8eccf4972e683f06a83ac",
        ),
    ];
    for (prk, info, okm) in cases {
        let okm = unhex(okm);
        let mut out = vec![0; okm.len()];
        hkdf_expand_sha256(&unhex(prk), &[&info], &mut out).unwrap();
        assert_eq!(out, okm);
    }
    assert_eq!(hkdf_expand_sha256(&[1; 32], &[], &mut [0; 8160]), Ok(()));
    assert_eq!(hkdf_expand_sha256(&[1; 32], &[], &mut [0; 8161]), Err(CryptoError));
}

/// No secret appears in debug output.
#[test]
fn debug_is_redacted() {
    let key = HmacKey::new(Digest::Sha256, b"secret").unwrap();
    assert_eq!(format!("{key:?}"), "HmacKey(SHA256)");
    assert_eq!(format!("{:?}", key.sign(&[])), "Mac(32 bytes)");
    assert_eq!(format!("{:?}", Aes256Ctr::new(&[1; 32]).unwrap()), "Aes256Ctr(..)");
    let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
    assert_eq!(format!("{half:?}"), "DirectionKey(..)");
}

proptest! {
    #[test]
    fn constant_time_eq_is_equality(a in any::<Vec<u8>>(), b in any::<Vec<u8>>()) {
        prop_assert_eq!(constant_time_eq(&a, &b), a == b);
        prop_assert!(constant_time_eq(&a, &a.clone()));
    }

    #[test]
    fn ctr_undoes_itself(key: [u8; 32], iv: [u8; 16], data: Vec<u8>) {
        let mut again = data.clone();
        aes256_ctr(&key, &iv, &mut again).unwrap();
        prop_assert!(data.len() < 16 || again != data);
        aes256_ctr(&key, &iv, &mut again).unwrap();
        prop_assert_eq!(again, data);
    }
}
