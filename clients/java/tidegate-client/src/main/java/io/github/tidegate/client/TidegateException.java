package io.github.tidegate.client;

/** A call that ended without a decision, or with a denial that was to be thrown. */
public abstract class TidegateException extends RuntimeException {
    TidegateException(String message, Throwable cause) {
        super(message, cause);
    }
}
