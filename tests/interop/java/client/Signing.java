import org.apache.rocketmq.remoting.RPCHook;

/** The official hook that signs requests, where the environment names an account. */
final class Signing {
    private static final String PACKAGE = "org.apache.rocketmq.acl.common.";

    private Signing() {
    }

    /** The hook; null without an account, because not every class path has it. */
    static RPCHook hook() throws ReflectiveOperationException {
        String key = System.getenv("CLIENT_ACCESS_KEY");
        if (key == null) {
            return null;
        }
        Class<?> credentials = Class.forName(PACKAGE + "SessionCredentials");
        Object account = credentials.getConstructor(String.class, String.class)
            .newInstance(key, System.getenv("CLIENT_SECRET_KEY"));
        return (RPCHook) Class.forName(PACKAGE + "AclClientRPCHook")
            .getConstructor(credentials).newInstance(account);
    }
}
